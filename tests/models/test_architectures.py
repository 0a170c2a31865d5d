"""Every architecture against transformers: each position's logits, whatever the steps were."""

from dataclasses import replace

import pytest
import torch

# Float32 sums in another order; logits here are of order 1 to 30.
TOLERANCE = {"atol": 1e-4, "rtol": 0.0}


def _only_in_full(*values):
    return [pytest.param(value, marks=pytest.mark.full) for value in values]


@pytest.mark.parametrize("block_size", [16, *_only_in_full(32)])
def test_whole_prompt_gives_the_reference_logits(variant, block_size, tiny_model, paged, tokens):
    tiny, prompt = tiny_model(variant), tokens(70)
    model = paged(tiny, block_size=block_size)
    logits = model.run(prompt, model.new_blocks(70))
    torch.testing.assert_close(logits, tiny.reference_logits(prompt), **TOLERANCE)


@pytest.mark.parametrize("chunk", [7, 17, *_only_in_full(1, 16)])
def test_chunked_prefill_gives_the_reference_logits(variant, chunk, tiny_model, paged, tokens):
    """KVC-09: chunk borders inside and on block borders."""
    tiny, prompt = tiny_model(variant), tokens(50)
    model = paged(tiny, block_size=16)
    logits = model.run(prompt, model.new_blocks(50), chunk=chunk)
    torch.testing.assert_close(logits, tiny.reference_logits(prompt), **TOLERANCE)


@pytest.mark.parametrize("length", [1, 16, 17, *_only_in_full(15, 32, 33)])
def test_prompts_that_end_around_a_block_edge_give_the_reference_logits(variant, length, tiny_model, paged, tokens):
    tiny, prompt = tiny_model(variant), tokens(length)
    model = paged(tiny)
    logits = model.run(prompt, model.new_blocks(length))
    torch.testing.assert_close(logits, tiny.reference_logits(prompt), **TOLERANCE)


def test_a_cached_prefix_gives_the_reference_logits(variant, tiny_model, paged, tokens):
    """KVC-05, ARC-11: the second request starts at position 32 on the first one's blocks."""
    tiny, first = tiny_model(variant), tokens(45)
    second = first[:40] + tokens(30, seed=1)
    model = paged(tiny)
    cached, fresh = model.new_blocks(45), model.new_blocks(70)
    model.run(first, cached)
    blocks = [shared[:2] + own[2:] for shared, own in zip(cached, fresh, strict=True)]
    logits = model.run(second, blocks, start=32)
    torch.testing.assert_close(logits, tiny.reference_logits(second)[32:], **TOLERANCE)


def test_long_greedy_decode_picks_the_reference_tokens(variant, tiny_model, paged, tokens):
    tiny, sequence = tiny_model(variant), tokens(37)
    model = paged(tiny)
    blocks = model.new_blocks(128)
    rows = [model.run(sequence, blocks, chunk=17)]
    while len(sequence) < 128:
        sequence.append(int(rows[-1][-1].argmax()))
        rows.append(model.step([(sequence[-1:], len(sequence) - 1, blocks)]))
    torch.testing.assert_close(torch.cat(rows), tiny.reference_logits(sequence), **TOLERANCE)


def test_prefills_and_decodes_of_one_step_do_not_disturb_each_other(variant, tiny_model, paged, tokens):
    tiny, model = tiny_model(variant), paged(tiny_model(variant), block_size=16)
    prompts = [tokens(23, seed=2), tokens(9, seed=3), tokens(41, seed=4)]
    blocks = [model.new_blocks(len(prompt)) for prompt in prompts]
    model.step([(prompts[0][:22], 0, blocks[0]), (prompts[2][:10], 0, blocks[2])])
    logits = model.step(
        [(prompts[0][22:], 22, blocks[0]), (prompts[1], 0, blocks[1]), (prompts[2][10:], 10, blocks[2])]
    )
    expected = [tiny.reference_logits(prompt) for prompt in prompts]
    torch.testing.assert_close(logits, torch.cat([expected[0][22:], expected[1], expected[2][10:]]), **TOLERANCE)


@pytest.mark.parametrize("chunk", [7, 17, *_only_in_full(1, 16, 64, None)])
def test_window_slides_past_chunk_borders(windowed_variant, chunk, tiny_model, paged, tokens):
    """KVC-08: 60 decodes after 70 tokens of prompt, then a second request on the first 32 cached tokens."""
    tiny, prompt, model = tiny_model(windowed_variant), tokens(70), paged(tiny_model(windowed_variant))
    sequence, blocks = prompt + tokens(60, seed=1), model.new_blocks(130)
    logits = [model.run(prompt, blocks, chunk=chunk)]
    logits += [model.step([(sequence[at : at + 1], at, blocks)]) for at in range(70, 130)]
    torch.testing.assert_close(torch.cat(logits), tiny.reference_logits(sequence), **TOLERANCE)
    second = prompt[:40] + tokens(20, seed=2)
    shared = [old[:2] + new[2:] for old, new in zip(blocks, model.new_blocks(60), strict=True)]
    resumed = model.run(second, shared, start=32, chunk=chunk)
    torch.testing.assert_close(resumed, tiny.reference_logits(second)[32:], **TOLERANCE)


def test_logits_of_chosen_rows_are_those_rows(tiny_model, paged, tokens):
    model = paged(tiny_model("gemma2"))
    hidden = model.hidden([(tokens(20), 0, model.new_blocks(20))])
    every_row = model.decoder.logits(hidden).clone()
    chosen = model.decoder.logits(hidden, torch.tensor([19, 3]))
    torch.testing.assert_close(chosen, every_row[[19, 3]], atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("wanted", [[6, 18], [], *_only_in_full([0], [18, 3, 3], list(range(19)))])
def test_hidden_states_of_wanted_rows_are_those_of_the_whole_step(variant, wanted, tiny_model, paged, tokens):
    model, prompts = paged(tiny_model(variant)), [tokens(7), tokens(12, seed=1)]
    rows = [(prompt, 0, model.new_blocks(len(prompt))) for prompt in prompts]
    every = model.hidden(rows).clone()
    assert torch.equal(model.hidden(rows, torch.tensor(wanted, dtype=torch.int64)), every[wanted])


def test_keys_of_rows_that_nobody_wants_are_written_in_every_layer(tiny_model, paged, tokens):
    tiny, prompt = tiny_model("gemma2"), tokens(30)
    model = paged(tiny)
    blocks = model.new_blocks(30)
    model.hidden([(prompt[:29], 0, blocks)], torch.tensor([], dtype=torch.int64))
    logits = model.step([(prompt[29:], 29, blocks)])
    torch.testing.assert_close(logits, tiny.reference_logits(prompt)[29:], **TOLERANCE)


def test_rows_of_the_head_that_are_no_tokens_are_cut_off(tiny_model, paged, tokens):
    tiny = tiny_model("llama")
    model = paged(tiny, spec=replace(tiny.spec, vocab_size=90))
    logits = model.run(tokens(9), model.new_blocks(9))
    torch.testing.assert_close(logits, tiny.reference_logits(tokens(9))[:, :90], **TOLERANCE)


@pytest.mark.parametrize("dtype", ["bfloat16", *_only_in_full("float16")])
def test_half_precision_stays_near_the_reference(variant, dtype, tiny_model, paged, tokens):
    """ARC-03: with every norm weight in float32 and the embedding scale as the dtype can express it."""
    tiny, prompt = tiny_model(variant), tokens(40)
    model = paged(tiny, dtype=dtype)
    logits = model.run(prompt, model.new_blocks(40)).float()
    expected = tiny.reference_logits(prompt)
    # bfloat16 keeps 8 bits, float16 11; errors add up over a few layers of random weights.
    assert (logits - expected).norm() / expected.norm() < {"bfloat16": 0.06, "float16": 0.008}[dtype]


def test_embedding_scale_is_rounded_to_the_dtype(device, make_tiny, tiny_model, paged, tokens, ops):
    """ARC-03: sqrt(48) is 6.928…; bfloat16 has 6.9375."""
    tiny = make_tiny("GemmaForCausalLM", head_dim=24, tie_word_embeddings=True)
    factors = []
    recording = replace(ops, scale=lambda x, factor, out: (factors.append(factor), ops.scale(x, factor, out))[1])
    model = paged(tiny, dtype="bfloat16", ops=recording)
    model.run(tokens(3), model.new_blocks(3))
    assert factors == [6.9375]
