"""Loading: every tensor is accounted for, one matrix at a time."""

import weakref
from dataclasses import replace

import pytest
import torch

from pageport.errors import CorruptWeights
from pageport.models.weights import check_names, load_decoder_weights


def _edited(tiny, *, without=(), extra=()):
    tensors = {name: tensor for name, tensor in tiny.checkpoint.tensors.items() if name not in without}
    tensors |= {name: torch.zeros(2, 2) for name in extra}
    return replace(tiny, checkpoint=replace(tiny.checkpoint, tensors=tensors))


def test_a_missing_tensor_fails_and_is_named_with_its_file(variant, tiny_model):
    """ARC-09: whichever it is; a missing norm is not replaced by ones."""
    tiny = tiny_model(variant)
    # An untied model's missing head is among these; a learned position table too.
    for name in tiny.checkpoint.tensors:
        edited = _edited(tiny, without=[name])
        with pytest.raises(CorruptWeights, match=r"tiny/model\.safetensors.*" + name.replace(".", r"\.")):
            check_names(tiny.spec, edited.checkpoint)


def test_a_missing_query_norm_stops_loading(tiny_model, device):
    """ARC-09"""
    tiny = tiny_model("qwen3")
    edited = _edited(tiny, without=["model.layers.1.self_attn.q_norm.weight"])
    with pytest.raises(CorruptWeights, match=r"needs model\.layers\.1\.self_attn\.q_norm\.weight that"):
        load_decoder_weights(edited.spec, edited.checkpoint, device, "float32")


def test_an_unknown_tensor_stops_loading(variant, tiny_model, device):
    """ARC-09"""
    edited = _edited(tiny_model(variant), extra=["model.layers.0.self_attn.surprise.weight"])
    with pytest.raises(CorruptWeights, match=r"hold model\.layers\.0\.self_attn\.surprise\.weight that"):
        load_decoder_weights(edited.spec, edited.checkpoint, device, "float32")


def test_biases_the_config_does_not_announce_stop_loading(make_tiny, device):
    """ARC-09"""
    tiny = make_tiny("LlamaForCausalLM", attention_bias=True)
    tiny.checkpoint.config = {**tiny.checkpoint.config, "attention_bias": False}
    with pytest.raises(CorruptWeights, match=r"layers\.0\.self_attn\.k_proj\.bias"):
        load_decoder_weights(tiny.spec, tiny.checkpoint, device, "float32")


def test_many_missing_tensors_are_counted(tiny_model):
    tiny = tiny_model("llama")
    edited = _edited(tiny, without=[name for name in tiny.checkpoint.tensors if "layers.1" in name])
    with pytest.raises(CorruptWeights, match="and 1 more tensors"):
        check_names(tiny.spec, edited.checkpoint)


def test_stored_rotary_frequencies_are_left_unread(tiny_model, device):
    edited = _edited(tiny_model("llama"), extra=["model.layers.0.self_attn.rotary_emb.inv_freq"])
    load_decoder_weights(edited.spec, edited.checkpoint, device, "float32")


@pytest.mark.parametrize("has_prefix", [True, False])
@pytest.mark.parametrize("has_masks", [True, False])
def test_gpt2_loads_in_every_layout(has_prefix, has_masks, tiny_model, paged, tokens):
    """ARC-11: with and without ``transformer.``, with and without the mask buffers, the head always absent."""
    tiny = tiny_model("gpt2-square")
    if has_masks:
        tiny = _edited(tiny, extra=["transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"])
    tensors = {
        name if has_prefix else name.removeprefix("transformer."): tensor
        for name, tensor in tiny.checkpoint.tensors.items()
    }
    tiny = replace(tiny, checkpoint=replace(tiny.checkpoint, tensors=tensors))
    model, prompt = paged(tiny), tokens(160)
    logits = model.run(prompt, model.new_blocks(160), chunk=100)
    torch.testing.assert_close(logits, tiny.reference_logits(prompt), atol=1e-4, rtol=0.0)


def test_published_gpt_neox_head_name_is_known(tiny_model, paged, tokens):
    tiny, prompt = tiny_model("gpt-neox-parallel"), tokens(20)
    tensors = dict(tiny.checkpoint.tensors)
    tensors["embed_out.weight"] = tensors.pop("lm_head.weight")
    tiny = replace(tiny, checkpoint=replace(tiny.checkpoint, tensors=tensors))
    model = paged(tiny)
    logits = model.run(prompt, model.new_blocks(20))
    torch.testing.assert_close(logits, tiny.reference_logits(prompt), atol=1e-4, rtol=0.0)


def test_a_tied_head_is_the_embeddings_own_handle(tiny_model, device):
    tiny = tiny_model("qwen2")
    weights = load_decoder_weights(tiny.spec, tiny.checkpoint, device, "float32")
    assert weights.lm_head.weight is weights.embedding


def test_a_stored_head_is_used_though_the_config_ties_it(tiny_model, device):
    tiny = tiny_model("llama")
    tiny = replace(
        tiny, checkpoint=replace(tiny.checkpoint, config={**tiny.checkpoint.config, "tie_word_embeddings": True})
    )
    weights = load_decoder_weights(tiny.spec, tiny.checkpoint, device, "float32")
    assert weights.lm_head.weight is not weights.embedding


def test_norm_weights_stay_in_float32_and_biases_take_the_compute_dtype(tiny_model, device):
    tiny = tiny_model("gpt2-square")
    layer = load_decoder_weights(tiny.spec, tiny.checkpoint, device, "bfloat16").layers[0]
    dtypes = (layer.attention_norm.weight.dtype, layer.attention_norm.bias.dtype, layer.qkv.bias.dtype)
    assert dtypes == (torch.float32, torch.float32, torch.bfloat16)


def test_progress_counts_every_matrix(tiny_model, device):
    tiny, seen = tiny_model("llama"), []
    load_decoder_weights(
        tiny.spec, tiny.checkpoint, device, "float32", progress=lambda done, total: seen.append((done, total))
    )
    # The embedding, four matrices in each of two layers, the head.
    assert seen == [(done, 10) for done in range(1, 11)]


def test_parts_are_dropped_before_the_next_matrix_is_made(tiny_model, device, monkeypatch):
    tiny, alive = tiny_model("llama"), []
    prepare = type(device).prepare_weight

    def counting(self, spec, parts):
        assert all(reference() is None for reference in alive)
        alive[:] = [weakref.ref(part) for part in parts]
        return prepare(self, spec, parts)

    monkeypatch.setattr(type(device), "prepare_weight", counting)
    load_decoder_weights(tiny.spec, tiny.checkpoint, device, "float32")
