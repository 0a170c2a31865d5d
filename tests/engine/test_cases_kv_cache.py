"""Prefix caching through the engine: what a hit leaves to compute, and who may hit what."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pageport import LLM, RequestOutput, SamplingParams
from pageport.errors import InvalidParameter

from .engine_drive import EngineDrive
from .local_server import PATHS, LocalServer

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
OpenLLM = Callable[..., LLM]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPT = [(11 * i) % 250 for i in range(48)]


def run(llm: LLM, prompt: list[int], cache_keys: dict[str, str] | None = None) -> RequestOutput:
    drive = EngineDrive(llm)
    (output,) = drive.finish(drive.add(prompt, GREEDY, cache_keys=cache_keys))
    drive.require_idle()
    return output


@pytest.mark.parametrize("budget", [7, pytest.param(64, marks=pytest.mark.full)])
def test_a_full_hit_computes_its_last_token_and_answers_as_without_a_cache(
    open_llm: OpenLLM, tiny_llama: Path, budget: int
) -> None:
    """KVC-01: prompts of whole blocks, one token more and one less; a longer third one still hits."""
    cached = open_llm(tiny_llama, max_num_batched_tokens=budget)
    uncached = open_llm(tiny_llama, max_num_batched_tokens=budget, enable_prefix_caching=False)
    for length in (15, 16, 17, 31, 32, 33, 47, 48, 49):
        prompt = [(length + 7 * i) % 250 for i in range(length)]
        longer = [*prompt, 1, 2, 3]
        expected = [run(uncached, tokens).outputs[0].token_ids for tokens in (prompt, longer)]
        first, second, third = run(cached, prompt), run(cached, prompt), run(cached, longer)
        assert [out.outputs[0].token_ids for out in (first, second, third)] == [expected[0], *expected]
        assert (second.num_cached_tokens, third.num_cached_tokens) == ((length - 1) // 16 * 16, length // 16 * 16)


@pytest.mark.parametrize(("budget", "depth"), [(15, 1), (16, 0), (32, 1)])
def test_hits_in_a_cache_that_is_full_answer_as_cold_ones(
    open_llm: OpenLLM, tiny_llama: Path, budget: int, depth: int
) -> None:
    """KVC-05: a prompt of 200 tokens, five questions after it, and others that evict it while they wait to run."""
    system = [(13 * i) % 250 for i in range(200)]
    questions = [[*system, *range(k, 2 * k + 1)] for k in range(1, 6)]
    fillers = [[(k + 3 * i) % 250 for i in range(90)] for k in range(5)]
    prompts = [prompt for pair in zip(questions, fillers, strict=True) for prompt in pair]
    cold = open_llm(tiny_llama, enable_prefix_caching=False, max_num_seqs=1)
    expected = [out.outputs[0].token_ids for out in cold.generate(prompts, GREEDY, use_tqdm=False)]
    settings = {"num_kv_blocks": 22, "max_num_batched_tokens": budget, "pipeline_depth": depth}
    warm = open_llm(tiny_llama, **settings)
    for _ in range(2):
        drive = EngineDrive(warm)
        answers = drive.finish(*(drive.add(prompt, GREEDY) for prompt in prompts))
        assert [answer.outputs[0].token_ids for answer in answers] == expected
        drive.require_idle()
    assert 0 < warm.stats().prefix_hit_tokens_total < warm.stats().prefix_query_tokens_total


def test_blocks_of_an_adapter_are_its_loads_own(open_llm: OpenLLM, tiny_llama: Path) -> None:
    """KVC-03: adapter A, the base model, B, then other weights under the name A; each hits only itself."""
    llm = open_llm(tiny_llama)
    expected = run(open_llm(tiny_llama, enable_prefix_caching=False), PROMPT).outputs[0].token_ids
    domains: list[dict[str, str]] = [{"adapter": "A#1"}, {}, {"adapter": "B#2"}, {"adapter": "A#3"}]
    for hits in (0, 32):
        outputs = [run(llm, PROMPT, domain) for domain in domains]
        assert [output.num_cached_tokens for output in outputs] == [hits] * 4
        assert [output.outputs[0].token_ids for output in outputs] == [expected] * 4


def test_keys_of_one_text_under_other_tags_do_not_hit(open_llm: OpenLLM, tiny_llama: Path) -> None:
    """KVC-04, KVC-11: an adapter, a salt and an image that are called the same; an empty one is not an absent one."""
    llm = open_llm(tiny_llama)
    domains: list[dict[str, str]] = [
        {}, {"adapter": "S"}, {"salt": "S"}, {"image": "S"}, {"salt": ""}, {"adapter": ""},
        {"adapter": "S", "salt": ""}, {"adapter": "S", "salt": "S"}, {"image": "rgb 2x3 S"},
        {"image": "rgb 3x2 S"}, {"image": "p 2x3 S"},
        {"salt": "adapter\0S"}, {"salt": "\1\0\0\0\0\0\0\0S"},
    ]  # fmt: skip
    assert [run(llm, PROMPT, domain).num_cached_tokens for domain in domains] == [0] * len(domains)
    assert [run(llm, PROMPT, domain).num_cached_tokens for domain in domains] == [32] * len(domains)


@pytest.mark.parametrize("path", PATHS)
def test_a_client_reaches_only_the_blocks_of_its_own_salt(open_llm: OpenLLM, tiny_llama: Path, path: str) -> None:
    """KVC-04: what ``cached_tokens`` tells; an empty salt is refused, and none at all is a domain of its own."""
    server = LocalServer(open_llm(tiny_llama))
    text = "the same prompt, more than two blocks long"
    body: dict[str, Any] = {"prompt": text, "messages": [{"role": "user", "content": text}], "max_tokens": 1}

    def cached_tokens(**fields: Any) -> int:
        response = server.post(path, **body, **fields)
        return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached_tokens(cache_salt=salt) for salt in ("S", "s", "adapterS", "salt")] == [0] * 4
    assert cached_tokens() == 0
    assert [cached_tokens(cache_salt="S"), cached_tokens(), cached_tokens(cache_salt=None)] == [cached_tokens()] * 3
    assert cached_tokens() >= 32
    response = server.post(path, **body, cache_salt="")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "cache_salt")


@pytest.mark.parametrize("key", ["prompt_embeds", "multi_modal_data", "mm_processor_kwargs", "encoder_prompt"])
@pytest.mark.parametrize("form", [{"prompt": "x"}, {"prompt_token_ids": [1]}, {}])
def test_inputs_that_are_no_text_are_refused_by_their_key(
    open_llm: OpenLLM, tiny_llama: Path, form: dict[str, Any], key: str
) -> None:
    """KVC-11: not ignored, which would answer another question from other requests' blocks."""
    with pytest.raises(InvalidParameter, match=rf"'{key}', which is not supported") as refused:
        open_llm(tiny_llama).generate({**form, key: {"image": object()}}, GREEDY)
    assert refused.value.parameter == key


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "http://127.0.0.1/x"}},
        {"type": "image_embeds", "image_embeds": "AAAA"},
    ],
)
def test_parts_of_a_message_that_are_no_text_are_refused(
    open_llm: OpenLLM, tiny_llama: Path, part: dict[str, Any]
) -> None:
    """KVC-11."""
    server = LocalServer(open_llm(tiny_llama))
    content = [{"type": "text", "text": "what is this?"}, part]
    response = server.post(PATHS[1], messages=[{"role": "user", "content": content}])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")
    assert part["type"] in response.json()["error"]["message"]
    assert server.llm.stats().steps_total == 0


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("field", ["prompt_embeds", "mm_processor_kwargs"])
def test_fields_for_inputs_that_are_no_text_are_refused(
    open_llm: OpenLLM, tiny_llama: Path, path: str, field: str
) -> None:
    """KVC-11."""
    server = LocalServer(open_llm(tiny_llama))
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], field: {"data": "AAAA"}}
    response = server.post(path, **body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)
