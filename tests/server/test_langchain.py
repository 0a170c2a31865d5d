"""LangChain against a served model, and around one in this process. `make test-all` installs it."""

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict

from pageport import LLM, SamplingParams

from .conftest import ServerProcess

pytestmark = pytest.mark.full
OPTIONS = ("--max-num-seqs", "8", "--num-kv-blocks", "256", "--max-model-len", "512", "--served-model-name", "tiny")
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "langchain_llm.py"


class Forecast(BaseModel):
    """Tell the weather."""

    model_config = ConfigDict(extra="forbid")  # a random model would go on and on

    city: Literal["Oslo", "Rome"]
    is_sunny: bool


@pytest.fixture(scope="module")
def url(tiny_model: str) -> Iterator[str]:
    server = ServerProcess(tiny_model, *OPTIONS, "--tool-format", "hermes").wait_until_ready()
    yield f"{server.url}/v1"
    server.stop()


@pytest.fixture
def arguments(url: str) -> dict[str, Any]:
    return {"base_url": url, "api_key": "none", "model": "tiny", "max_retries": 0}


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def chat(request: pytest.FixtureRequest, arguments: dict[str, Any]) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(**arguments, temperature=0, max_tokens=12, stream_usage=True, use_responses_api=request.param)


def text_of(message: Any) -> str:
    """The message's text; random bytes may be none, and its content then no list of blocks."""
    return str(message.text)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    """One for all tests: the asynchronous client keeps its connections for the next model."""
    with asyncio.Runner() as runner:
        yield runner


def test_an_answer_is_the_same_streamed_and_awaited(chat: Any, loop: asyncio.Runner) -> None:
    whole = chat.invoke("hi")
    chunks = list(chat.stream("hi"))
    streamed = chunks[0]
    for chunk in chunks[1:]:
        streamed += chunk
    assert len(chunks) > 3
    assert text_of(whole) == text_of(streamed) == text_of(loop.run(chat.ainvoke("hi")))
    assert whole.usage_metadata["output_tokens"] == streamed.usage_metadata["output_tokens"] <= 12
    assert whole.usage_metadata["input_tokens"] == streamed.usage_metadata["input_tokens"] > 0


def test_a_batch_s_answers_are_those_given_alone(chat: Any) -> None:
    questions = ["a", "bb", "ccc"]
    assert list(map(text_of, chat.batch(questions))) == [text_of(chat.invoke(question)) for question in questions]


def test_a_conversation_is_taken_with_all_its_roles(chat: Any) -> None:
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

    told = [SystemMessage("be brief"), HumanMessage("hi"), AIMessage("hello"), HumanMessage("again")]
    assert chat.invoke(told).usage_metadata["input_tokens"] > chat.invoke("again").usage_metadata["input_tokens"]


def test_structured_output_fits_its_model(chat: Any) -> None:
    forecast = chat.model_copy(update={"max_tokens": 100}).with_structured_output(Forecast, method="json_schema")
    answer = forecast.invoke("How is it in Oslo?")
    assert isinstance(answer, Forecast)
    assert answer.city in ("Oslo", "Rome")


def test_a_demanded_tool_is_called(chat: Any) -> None:
    calling = chat.model_copy(update={"max_tokens": 200}).bind_tools([Forecast], tool_choice="Forecast")
    (call,) = calling.invoke("How is it in Oslo?").tool_calls
    assert call["name"] == "Forecast"
    assert Forecast(**call["args"])
    streamed = None
    for chunk in calling.stream("How is it in Oslo?"):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    assert [(made["name"], made["args"]) for made in streamed.tool_calls] == [(call["name"], call["args"])]


def test_a_tool_s_answer_goes_back_to_the_model(chat: Any) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    calling = chat.model_copy(update={"max_tokens": 200}).bind_tools([Forecast], tool_choice="Forecast")
    asked = calling.invoke("How is it in Oslo?")
    told = ToolMessage("sunny", tool_call_id=asked.tool_calls[0]["id"])
    answer = chat.invoke([HumanMessage("How is it in Oslo?"), asked, told])
    assert answer.usage_metadata["output_tokens"] > 0


def test_embeddings_are_those_of_the_offline_model(arguments: dict[str, Any], tiny_model: str) -> None:
    from langchain_openai import OpenAIEmbeddings

    # Otherwise it cuts texts into the tokens of a vocabulary that it would have to fetch.
    embeddings = OpenAIEmbeddings(**arguments, check_embedding_ctx_length=False)
    texts = ["ab", "a longer text"]
    with LLM(tiny_model, num_kv_blocks=64, max_model_len=128) as llm:
        expected = llm.embed(texts)
    for given, wanted in zip(embeddings.embed_documents(texts), expected, strict=True):
        assert given == pytest.approx(wanted, abs=1e-5)
    assert embeddings.embed_query("ab") == pytest.approx(expected[0], abs=1e-5)


def test_the_completions_model_works_too(arguments: dict[str, Any]) -> None:
    from langchain_openai import OpenAI

    llm = OpenAI(**arguments, temperature=0, max_tokens=8)
    assert "".join(llm.stream("abc")) == llm.invoke("abc")


def test_the_example_around_the_offline_model_says_what_the_model_says(tiny_model: str) -> None:
    specification = importlib.util.spec_from_file_location("langchain_llm", EXAMPLE)
    assert specification is not None and specification.loader is not None
    module = sys.modules["langchain_llm"] = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    settings = {"num_kv_blocks": 64, "max_model_len": 128}
    prompts, params = ["ab", "xyz"], SamplingParams(temperature=0, max_tokens=10)
    with LLM(tiny_model, **settings) as offline:
        expected = [output.outputs[0].text for output in offline.generate(prompts, params, use_tqdm=False)]
    llm = module.PageportLLM(model=tiny_model, sampling=params, engine_settings=settings)
    assert llm.batch(prompts) == expected
    assert "".join(llm.stream("ab")) == expected[0]
    assert llm.invoke("ab", max_tokens=3) == llm.invoke("ab", stop=[expected[0][3:]]) == expected[0][:3]
    llm.close()
