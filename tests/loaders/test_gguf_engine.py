"""A GGUF file through the engine says what the folder of the same weights says."""

import json

import gguf
import numpy as np
import pytest
import torch

from pageport import LLM, SamplingParams
from pageport.testing.tiny_model import VOCAB_SIZE, byte_tokenizer

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
_HIDDEN, _INNER, _HEADS, _KV_HEADS = 64, 96, 4, 2
_CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": _HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _KV_HEADS,
    "head_dim": _HIDDEN // _HEADS,
    "intermediate_size": _INNER,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}
_METADATA = {
    "embedding_length": _HIDDEN,
    "block_count": 2,
    "attention.head_count": _HEADS,
    "attention.head_count_kv": _KV_HEADS,
    "feed_forward_length": _INNER,
    "context_length": 256,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10_000.0,
    "rope.dimension_count": _HIDDEN // _HEADS,
}
# As llama.cpp falls back where rows are no multiple of 256 weights: other types side by side in one layer, and within
# the projections that are fused here.
_MIXED = {
    "q_proj": "Q5_0",
    "k_proj": "Q8_0",
    "v_proj": "Q5_1",
    "gate_proj": "Q4_0",
    "up_proj": "Q5_0",
    "lm_head": "F16",
}
_GREEDY = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
_PROMPTS = [[5], [(7 * i) % 250 for i in range(40)], list(b"The quick brown fox")]


def _kind(name, kinds):
    return next((kind for module, kind in kinds.items() if f"{module}." in name), kinds["other"])


def _stored(tensor, kind):
    """Return what a file that stores ``tensor`` as ``kind`` holds."""
    quantised = gguf.quants.quantize(tensor.numpy(), gguf.GGMLQuantizationType[kind])
    return torch.from_numpy(gguf.quants.dequantize(quantised, gguf.GGMLQuantizationType[kind]).astype(np.float32))


def _answers(path, tokenizer, dtype):
    settings = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "num_kv_blocks": 64, "max_model_len": 256}
    with LLM(str(path), tokenizer=str(tokenizer), dtype=dtype, **settings) as llm:
        outputs = llm.generate(_PROMPTS, _GREEDY, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("kinds", [{"other": "F32"}, {"other": "F16"}, {"other": "Q8_0"}, {**_MIXED, "other": "Q8_0"}])
@pytest.mark.parametrize(
    ("architecture", "name"),
    [("llama", "LlamaForCausalLM"), ("llama", "MistralForCausalLM"), ("qwen2", "Qwen2ForCausalLM")],
)
def test_greedy_tokens_are_those_of_the_folder_of_the_same_weights(
    architecture, name, kinds, tiny, convert, write_gguf, save_folder, tmp_path
):
    """GGU-01, GGU-05: 64 tokens on; q and k of 4 and 2 heads, un-permuted for llama and mistral but not for qwen2."""
    window = {"sliding_window": 48} if name == "MistralForCausalLM" else {}
    model = tiny({**_CONFIG, **window, "architectures": [name]}, "lm_head")
    # Far enough from zero that a wrong row would be seen, near enough that nothing overflows.
    model.tensors = {n: t * (0.1 if t.dim() == 1 else 1.5 * t.shape[-1] ** -0.5) for n, t in model.tensors.items()}
    types = {n: _kind(n, kinds) for n, t in model.tensors.items() if t.dim() == 2}
    model.tensors |= {n: _stored(model.tensors[n], kind) for n, kind in types.items()}
    converted = convert(architecture, model)
    gguf_types = {
        new: gguf.GGMLQuantizationType[types[old]]
        for old, new in zip(model.tensors, converted, strict=True)
        if old in types and types[old] != "F32"
    }
    metadata = {**_METADATA, **({"attention.sliding_window": 48} if window else {})}
    file = write_gguf(tmp_path / "model.gguf", architecture, metadata, converted, gguf_types)
    folder = save_folder(tmp_path / "folder", model.config, model.tensors)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    expected = _answers(folder, folder, "float32")
    assert _answers(file, folder, "float32") == expected
    assert len({tuple(answer) for answer in expected}) == 3


_TEXT = (
    "The city of Lyon lies where two rivers meet. People have lived there for more than two thousand years, and its "
    "old streets still follow the lines that the first builders drew. In the morning the markets open, and bakers, "
    "farmers and fishmongers call out their prices. A tram crosses the bridge every few minutes. On the hill above "
    "the town stands a white church, from which one can see the mountains when the air is clear. "
)


@pytest.mark.smollm2
def test_the_demo_models_perplexity_does_not_suffer_from_how_its_weights_are_kept():
    """GGU-05: its own format against dequantised weights in float32, on the same text."""
    losses = []
    for dtype in ("float32", "auto"):
        with LLM("smollm2", dtype=dtype, max_model_len=512, max_num_seqs=1, num_kv_blocks=64) as llm:
            params = SamplingParams(max_tokens=1, prompt_logprobs=0)
            (output,) = llm.generate(_TEXT, params, use_tqdm=False)
            scored = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
            losses.append(-np.mean([entry[token].logprob for token, entry in scored]))
    # A model whose weights are read wrongly is in the thousands.
    assert np.exp(losses[0]) < 40
    assert np.exp(losses[1] - losses[0]) == pytest.approx(1.0, abs=0.03)
