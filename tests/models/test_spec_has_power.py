"""What a spec says matters: with it left out, logits differ visibly from transformers."""

from dataclasses import replace

import pytest

from pageport.models.spec import DecoderSpec

VISIBLE = 0.05


def _changed(spec: DecoderSpec, attention=None, **layer_fields) -> DecoderSpec:
    layers = [
        replace(layer, attention=replace(layer.attention, **(attention or {})), **layer_fields) for layer in spec.layers
    ]
    return replace(spec, layers=tuple(layers))


CHANGES = {
    # ARC-01
    "gemma2 without the attention cap": ("gemma2", lambda spec: _changed(spec, {"softcap": None})),
    "gemma2 without the logit cap": ("gemma2", lambda spec: replace(spec, logit_softcap=None)),
    # ARC-03
    "gemma2 with the usual attention scale": ("gemma2", lambda spec: _changed(spec, {"scale": 24**-0.5})),
    "gemma2 without its embedding scale": ("gemma2", lambda spec: replace(spec, embedding_scale=None)),
    "gemma with plain norms": (
        "gemma",
        lambda spec: replace(spec, final_norm=replace(spec.final_norm, unit_offset=False)),
    ),
    "gemma3 with one rope for all layers": ("gemma3", lambda spec: _changed(spec, {"rope": 0})),
    # KVC-08
    "mistral without its window": ("mistral-window", lambda spec: _changed(spec, {"sliding_window": None})),
    "mistral with a window too wide by one": ("mistral-window", lambda spec: _changed(spec, {"sliding_window": 17})),
    "gemma3 without its windows": ("gemma3", lambda spec: _changed(spec, {"sliding_window": None})),
    # Of the residual layout
    "gpt-neox as if sequential": ("gpt-neox-parallel", lambda spec: _changed(spec, residual="sequential")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_leaving_it_out_is_visible(change, tiny_model, paged, tokens):
    variant, edit = CHANGES[change]
    tiny, prompt = tiny_model(variant), tokens(70)
    model = paged(tiny, spec=edit(tiny.spec))
    difference = model.run(prompt, model.new_blocks(70)) - tiny.reference_logits(prompt)
    assert difference.abs().max() > VISIBLE


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_leaving_out_the_norms_of_queries_and_keys_is_visible(name, tiny_model, paged, tokens):
    """ARC-09"""
    tiny, prompt = tiny_model(name), tokens(30)
    spec = replace(_changed(tiny.spec, {"q_norm": None, "k_norm": None}), ignored_tensors=(r".*[qk]_norm\.weight",))
    model = paged(tiny, spec=spec)
    difference = model.run(prompt, model.new_blocks(30)) - tiny.reference_logits(prompt)
    assert difference.abs().max() > VISIBLE


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_leaving_out_the_output_norms_is_visible(name, tiny_model, paged, tokens):
    """ARC-03"""
    tiny, prompt = tiny_model(name), tokens(30)
    spec = _changed(tiny.spec, attention_output_norm=None, mlp_output_norm=None)
    spec = replace(spec, ignored_tensors=(r".*\.post_(attention|feedforward)_layernorm\.weight",))
    model = paged(tiny, spec=spec)
    difference = model.run(prompt, model.new_blocks(30)) - tiny.reference_logits(prompt)
    assert difference.abs().max() > VISIBLE


@pytest.mark.parametrize("name", ["llama-biased-tied-wide-heads", "qwen2", "qwen3-biased-window"])
def test_leaving_out_attention_biases_is_visible(name, tiny_model, paged, tokens):
    """ARC-09"""
    tiny, prompt = tiny_model(name), tokens(30)
    layers = [
        replace(layer, attention=replace(layer.attention, qkv=replace(layer.attention.qkv, biases=())))
        for layer in tiny.spec.layers
    ]
    model = paged(tiny, spec=replace(tiny.spec, layers=tuple(layers), ignored_tensors=(r".*_proj\.bias",)))
    difference = model.run(prompt, model.new_blocks(30)) - tiny.reference_logits(prompt)
    assert difference.abs().max() > VISIBLE


def test_reading_a_square_gpt2_matrix_untransposed_is_visible(tiny_model, paged, tokens):
    """ARC-11: shapes alone do not catch it when n_inner equals n_embd."""
    tiny, prompt = tiny_model("gpt2-square"), tokens(30)
    layers = [
        replace(
            layer,
            mlp=replace(layer.mlp, up=replace(layer.mlp.up, parts=(replace(layer.mlp.up.parts[0], transposed=False),))),
        )
        for layer in tiny.spec.layers
    ]
    model = paged(tiny, spec=replace(tiny.spec, layers=tuple(layers)))
    difference = model.run(prompt, model.new_blocks(30)) - tiny.reference_logits(prompt)
    assert difference.abs().max() > VISIBLE
