"""``NeuronDecoder``: the static decoder with this backend's attention for decodes, and its share of choosing tokens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pageport.backend.choice import Choice
from pageport.backend.decoder_weights import DecoderWeights
from pageport.backend.description import DecoderDescription
from pageport.backend.kv import AttentionParams
from pageport.backend.reference.static_choose import ChoiceTensors
from pageport.backend.reference.static_decoder import StaticDecoder
from pageport_neuron.attention import DecodeAttention, serves

if TYPE_CHECKING:
    from pageport.backend.device import Device


class NeuronDecoder(StaticDecoder):
    """One step of a decoder; made anew inside each program that is traced."""

    def __init__(
        self,
        device: "Device",
        description: DecoderDescription,
        weights: DecoderWeights,
        pools: Sequence[Any],
        *,
        decode_attention: DecodeAttention,
        draws: bool,
    ) -> None:
        """Bind the weights.

        Args:
            draws: choose tokens as every request asks; else the likeliest.
        """
        super().__init__(device, description, weights, pools)
        self._decode_attention = decode_attention
        self._draws = draws

    def attend(
        self,
        pool: Any,
        layer: int,
        query: Tensor,
        params: AttentionParams,
        block_table: Tensor,
        positions: Tensor,
        seq_lens: Tensor,
    ) -> Tensor:
        if query.shape[0] == block_table.shape[0] and serves(pool.spec, params):
            keys, values = pool.key[layer], pool.value[layer]
            return self._decode_attention(query, keys, values, block_table, seq_lens, params.scale)
        return super().attend(pool, layer, query, params, block_table, positions, seq_lens)

    def choose(self, logits: Tensor, choice: ChoiceTensors) -> Choice:
        return super().choose(logits, choice) if self._draws else likeliest(logits)


def likeliest(logits: Tensor) -> Choice:
    """Take each row's largest logit, the first of equals, in reductions of one result each."""
    logits = logits.float()
    last = logits.shape[1] - 1
    peaks = logits.amax(dim=-1)
    # Ids fit 32 bits, and the compiler has no wider integers. A row of NaN has no largest: any id will do there.
    token_ids = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
    first = torch.where(logits == peaks[:, None], token_ids, last).amin(dim=-1)
    return Choice(first.long(), peaks)
