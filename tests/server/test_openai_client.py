"""The official ``openai`` client against a real server process."""

import asyncio
import time
from collections.abc import Iterator

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from .conftest import ServerProcess

OPTIONS = (
    "--max-num-seqs",
    "16",
    "--num-kv-blocks",
    "512",
    "--max-model-len",
    "512",
    "--served-model-name",
    "tiny/one",
)
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server(tiny_model: str) -> Iterator[ServerProcess]:
    process = ServerProcess(tiny_model, *OPTIONS).wait_until_ready()
    yield process
    process.stop()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny/one"]
    assert client.models.retrieve("tiny/one").id == "tiny/one"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("tiny/two")


def test_a_completion_is_the_same_streamed(client: OpenAI) -> None:
    """STP-03 and DET-02: whatever bytes a random model makes, both ways say the same."""
    options = {"model": "tiny/one", "prompt": "abc", "max_tokens": 40, "temperature": 0}
    whole = client.completions.create(**options, extra_body={"ignore_eos": True})
    chunks = list(client.completions.create(**options, stream=True, extra_body={"ignore_eos": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 40


def test_a_chat_is_the_same_streamed(client: OpenAI) -> None:
    options = {"model": "tiny/one", "messages": MESSAGES, "max_tokens": 20, "temperature": 0}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == whole.choices[0].message.content
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_n_choices_of_one_seed_differ_and_repeat(client: OpenAI) -> None:
    """SMP-01: the prompt is computed once."""
    options = {"model": "tiny/one", "prompt": "abc", "n": 4, "seed": 7, "max_tokens": 16, "temperature": 1}
    first, second = (client.completions.create(**options) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in second.choices]
    assert len(set(texts)) == 4
    assert first.usage is not None
    assert first.usage.prompt_tokens == second.usage.prompt_tokens < 10  # type: ignore[union-attr]


def test_the_best_of_several_samples_or_beams_come_back(client: OpenAI) -> None:
    options = {"model": "tiny/one", "prompt": "abc", "max_tokens": 8}
    sampled = client.completions.create(**options, n=2, best_of=4, seed=3)
    beams = client.completions.create(**options, n=2, best_of=4, extra_body={"use_beam_search": True})
    for answer in (sampled, beams):
        assert [choice.index for choice in answer.choices] == [0, 1]
        assert answer.choices[0].text != answer.choices[1].text


def test_chat_logprobs_belong_to_the_chosen_tokens(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny/one", messages=MESSAGES, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.content
    for token in answer.choices[0].logprobs.content:
        assert [top.logprob for top in token.top_logprobs] == sorted(
            (t.logprob for t in token.top_logprobs), reverse=True
        )
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].bytes == token.bytes


def test_echoed_prompts_are_scored_alike_with_and_without_a_cached_prefix(client: OpenAI) -> None:
    """LOG-01 and LOG-02."""
    options = {"model": "tiny/one", "prompt": "x" * 48, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    first, second = (client.completions.create(**options).choices[0].logprobs for _ in range(2))
    assert first is not None and second is not None
    assert first.token_logprobs == second.token_logprobs
    assert first.token_logprobs is not None and first.token_logprobs[0] is None
    assert None not in first.token_logprobs[1:]
    assert len(first.token_logprobs) == len(first.tokens or []) == len(first.text_offset or [])


def test_a_stop_string_ends_the_text_before_it(client: OpenAI) -> None:
    """STP-01 and STP-03: at every place, streamed or not."""
    options = {"model": "tiny/one", "prompt": "abc", "max_tokens": 24, "temperature": 0}
    options["extra_body"] = {"ignore_eos": True}
    text = client.completions.create(**options).choices[0].text
    for start in range(2, 8):
        stop = text[start : start + 3]
        expected = text[: text.index(stop)]
        choice = client.completions.create(**options, stop=[stop]).choices[0]
        chunks = list(client.completions.create(**options, stop=[stop], stream=True))
        assert (choice.text, choice.finish_reason) == (expected, "stop")
        assert "".join(chunk.choices[0].text for chunk in chunks) == expected


def test_refusals_are_the_clients_own_exceptions(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no-such"):
        client.completions.create(model="no-such", prompt="a")
    with pytest.raises(openai.BadRequestError, match="512"):
        client.completions.create(model="tiny/one", prompt="a" * 600)
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny/one", prompt="a", temperature=-1, stream=True)
    assert refused.value.param == "temperature"


def test_many_clients_at_once_get_what_each_gets_alone(server: ServerProcess, client: OpenAI) -> None:
    prompts = [f"prompt number {i}" for i in range(24)]
    options = {"model": "tiny/one", "max_tokens": 8, "temperature": 0}

    async def ask_all() -> list[str]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as clients:
            answers = await asyncio.gather(*(clients.completions.create(prompt=p, **options) for p in prompts))
        return [answer.choices[0].text for answer in answers]

    together = asyncio.run(ask_all())
    assert together[:4] == [client.completions.create(prompt=p, **options).choices[0].text for p in prompts[:4]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_blocks(server: ServerProcess, stream: bool) -> None:
    """ABT-01."""
    before = server.wait_until_idle()
    body = {"prompt": "abc", "max_tokens": 400, "ignore_eos": True, "stream": stream}
    client = httpx.Client(timeout=httpx.Timeout(5, read=5 if stream else 0.03))
    request = client.build_request("POST", f"{server.url}/v1/completions", json=body)
    if stream:
        next(client.send(request, stream=True).iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            client.send(request)
    client.close()
    after = server.wait_until_idle()
    aborts = "pageport:requests_finished_total abort"
    assert after[aborts] == before.get(aborts, 0) + 1


@pytest.mark.full
def test_two_hundred_clients_that_leave_leave_nothing_behind(server: ServerProcess, client: OpenAI) -> None:
    """ABT-01."""
    before = server.wait_until_idle()
    for _ in range(200):
        options = {"model": "tiny/one", "prompt": "abc", "max_tokens": 400, "extra_body": {"ignore_eos": True}}
        with client.completions.create(**options, stream=True) as stream:
            next(iter(stream))
    after = server.wait_until_idle()
    aborts = "pageport:requests_finished_total abort"
    assert after[aborts] == before.get(aborts, 0) + 200


def test_ends_are_counted_by_reason(server: ServerProcess, client: OpenAI) -> None:
    """MET-01 and MET-03."""
    options = {"model": "tiny/one", "prompt": "abc", "temperature": 0, "extra_body": {"ignore_eos": True}}
    stop = client.completions.create(**options).choices[0].text[3:5]
    before = server.wait_until_idle()
    for _ in range(5):
        with client.completions.create(**options, max_tokens=300, stream=True) as stream:
            next(iter(stream))
        client.completions.create(**options, max_tokens=3)
        client.completions.create(**options, max_tokens=300, stop=[stop])
    for _ in range(2):
        with pytest.raises(openai.BadRequestError):
            client.completions.create(**options, max_tokens=10_000)
    after = server.wait_until_idle()

    def grown(name: str) -> float:
        return after[f"pageport:{name}"] - before.get(f"pageport:{name}", 0)

    assert [grown(f"requests_finished_total {reason}") for reason in ("abort", "length", "stop")] == [5, 5, 5]
    assert grown("http_responses_total /v1/completions 400") == 2
    assert grown("prompt_tokens_total") == 15 * len("abc")


@pytest.fixture(scope="module")
def smollm2() -> Iterator[OpenAI]:
    process = ServerProcess("smollm2", "--max-num-seqs", "8", "--max-model-len", "512").wait_until_ready()
    with OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0) as client:
        yield client
    process.stop()


@pytest.mark.smollm2
def test_the_demo_model_answers_sensibly(smollm2: OpenAI) -> None:
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    options = {"model": "smollm2", "messages": messages, "max_tokens": 32, "temperature": 0}
    answer = smollm2.chat.completions.create(**options)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    chunks = list(smollm2.chat.completions.create(**options, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == answer.choices[0].message.content


@pytest.mark.smollm2
def test_the_demo_model_streams_as_it_generates(smollm2: OpenAI) -> None:
    """NET-03: the first chunk comes well before the last."""
    started = time.perf_counter()
    times = [
        time.perf_counter() - started
        for _ in smollm2.completions.create(
            model="smollm2", prompt="Once upon a time", max_tokens=32, temperature=0, stream=True
        )
    ]
    assert len(times) >= 20
    assert times[0] < times[-1] / 2


RESPONSE = {"model": "tiny/one", "input": "hi", "temperature": 0, "max_output_tokens": 12}
IGNORE_EOS = {"ignore_eos": True}


def test_a_response_is_the_same_streamed(client: OpenAI) -> None:
    whole = client.responses.create(**RESPONSE, extra_body=IGNORE_EOS)
    told = list(client.responses.create(**RESPONSE, stream=True, extra_body=IGNORE_EOS))
    assert (whole.status, told[0].type, told[-1].type) == ("incomplete", "response.created", "response.incomplete")
    deltas = [event.delta for event in told if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert whole.usage is not None
    assert whole.usage.output_tokens == 12


def test_a_response_is_streamed_through_the_client_s_helper(client: OpenAI) -> None:
    chat = client.chat.completions.create(
        model="tiny/one",
        messages=[{"role": "user", "content": "hi"}],
        temperature=0,
        max_tokens=12,
    )
    with client.responses.stream(**RESPONSE) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
    assert snapshots[-1] == chat.choices[0].message.content


def test_a_response_is_kept_continued_and_deleted(client: OpenAI) -> None:
    first = client.responses.create(**RESPONSE, instructions="be brief")
    assert client.responses.retrieve(first.id) == first
    second = client.responses.create(**RESPONSE | {"input": "and?"}, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    items = list(client.responses.input_items.list(second.id, limit=1))
    assert [item.content[0].text for item in items if item.type == "message"] == ["and?", first.output_text, "hi"]
    counted = client.responses.input_tokens.count(model="tiny/one", input="hi", instructions="be brief")
    assert first.usage is not None
    assert counted.input_tokens == first.usage.input_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="no response"):
        client.responses.create(**RESPONSE, previous_response_id=first.id)


def test_a_response_that_runs_into_its_end_of_time_is_a_timeout(client: OpenAI) -> None:
    """A tiny model says 400 tokens in far more than a hundredth of a second."""
    asked = RESPONSE | {"max_output_tokens": 400}
    with pytest.raises(openai.APIStatusError) as refused:
        client.responses.create(**asked, extra_body=IGNORE_EOS | {"timeout": 0.01})
    assert refused.value.status_code == 408
    with pytest.raises(openai.APIStatusError) as refused:
        client.completions.create(
            model="tiny/one", prompt="a", max_tokens=400, extra_body=IGNORE_EOS | {"timeout": 0.01}
        )
    assert refused.value.status_code == 408


def test_the_request_id_is_the_client_s(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny/one", messages=[{"role": "user", "content": "a"}], extra_headers={"X-Request-Id": "mine-7"}
    )
    assert answer._request_id == "mine-7"
