"""Repetition, frequency and presence penalties."""

import torch
from jaxtyping import Float32
from torch import Tensor

from pageport.sampling.batch import SamplingBatch


def apply_penalties(logits: Float32[Tensor, "rows vocab"], batch: SamplingBatch) -> None:
    """Penalise, in place, tokens that already occurred in the rows that want it.

    Repetition (arXiv:1909.05858) looks at prompt and output: positive logits are divided, others multiplied. Frequency
    and presence look at the output only, as OpenAI defines them. Only logits of tokens in the history are touched.
    """
    if not batch.penalised_rows.size:
        return
    rows = torch.from_numpy(batch.penalised_rows).to(logits.device)
    vocab_size = logits.shape[1]
    index = torch.arange(batch.max_penalised_length, device=logits.device)[None, :]
    is_output = (index >= batch.num_prompt_tokens[rows, None]) & (index < batch.lengths[rows, None])
    token_ids = batch.history[batch.history_rows[rows], : batch.max_penalised_length].long()
    # What lies past a row's length repeats its first token, whose penalised logit is then written again.
    token_ids = torch.where(index < batch.lengths[rows, None], token_ids, token_ids[:, :1])
    counts = torch.zeros((len(batch.penalised_rows), vocab_size), device=logits.device)
    count = counts.scatter_add_(1, token_ids, is_output.float()).gather(1, token_ids)
    places = (rows[:, None] * vocab_size + token_ids).flatten()
    values = logits.view(-1)[places].view(token_ids.shape)
    repetition = batch.repetition_penalties[rows, None]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values = values - batch.frequency_penalties[rows, None] * count
    values = values - batch.presence_penalties[rows, None] * (count > 0)
    logits.view(-1)[places] = values.flatten()
