"""Requests generated from our own OpenAPI description, valid and invalid ones: the server answers each, as it says."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from .conftest import ServerProcess

OPTIONS = ("--num-kv-blocks", "128", "--max-model-len", "64", "--max-num-seqs", "16", "--max-choices", "8")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
STREAMS = {
    "/v1/completions": {"prompt": "hello", "max_tokens": 3, "stream": True},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True},
    "/v1/responses": {"input": "hello", "max_output_tokens": 3, "stream": True},
}
# A request that is answered later than this hangs.
TIMEOUT_S = 60


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("num_requests", [200, pytest.param(2000, marks=pytest.mark.full)])
def test_generated_requests_are_answered_as_described(tiny_model: str, num_requests: int) -> None:
    server = ServerProcess(tiny_model, *OPTIONS).wait_until_ready()
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert {operation.path for operation in operations} >= {"/v1/completions", "/v1/chat/completions", "/health"}
    with_body = [operation for operation in operations if operation.body]
    for operation in operations:
        # The others have little to vary.
        num_examples = -(-num_requests // len(with_body)) if operation in with_body else 10

        @settings(
            max_examples=num_examples,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def answer(case: Case) -> None:
            # Any other model is unknown here, whatever else is asked.
            if isinstance(case.body, dict):
                case.body.pop("model", None)
            response = case.call(timeout=TIMEOUT_S)
            case.validate_response(response, checks=CHECKS)

        answer()
    server.wait_until_idle()
    assert "Traceback" not in server.stop()


def test_streams_are_as_described(tiny_model: str) -> None:
    server = ServerProcess(tiny_model, *OPTIONS).wait_until_ready()
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    for path, body in STREAMS.items():
        case = schema[path]["POST"].Case(body=body, media_type="application/json")
        response = case.call(timeout=TIMEOUT_S)
        assert response.headers["content-type"][0].startswith("text/event-stream"), response.text
        case.validate_response(response, checks=CHECKS)
    server.stop()
