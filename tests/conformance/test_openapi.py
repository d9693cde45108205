"""Schemathesis over our own OpenAPI document: no 5xx, and every answer is of its schema."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.conformance.conftest import PATIENCE_S

Serve = Callable[..., str]

pytestmark = pytest.mark.conformance

MODEL = "gpt-oss-20b"
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
SCRIPTS = (
    THOUGHT + "<|channel|>final<|message|>Grüße, 🪿!<|return|>",
    THOUGHT + '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
    "<|channel|>commentary?<|message|>Malformed<|return|>",
)
NUM_EXAMPLES = {"POST": 30, "GET": 10, "DELETE": 10}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions/render": {"prompt": "Hi"},
    "/v1/chat/completions/render": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"input": "Hi"},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/messages": {"max_tokens": 20, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1, 2]},
}
OPERATIONS = [
    *(f"POST {path}" for path in BODIES),
    "POST /v1/responses/{response_id}/cancel",
    "DELETE /v1/responses/{response_id}",
    "GET /v1/responses/{response_id}",
    "GET /v1/responses/{response_id}/input_items",
    "GET /v1/models",
    "GET /v1/models/{model_id}",
    "GET /v1/health/live",
    "GET /v1/health/ready",
    "GET /health",
    "GET /ping",
    "POST /ping",
    "GET /load",
    "GET /version",
    "GET /tokenizer_info",
    "GET /v1/version",
    "GET /v1/metadata",
    "GET /v1/manifest",
    "GET /v1/license",
    "POST /v1/engine/kill",
    "GET /v1/metrics",
    "GET /metrics",
]
# Not tried: requests that need what another one made, and parts that are off. The document does not
# say all of their errors.
OTHERS = [
    "DELETE /v1/conversations/{conversation_id}",
    "DELETE /v1/conversations/{conversation_id}/items/{item_id}",
    "DELETE /v1/files/{file_id}",
    "DELETE /v1/messages/batches/{batch_id}",
    "GET /api/ps",
    "GET /api/tags",
    "GET /api/version",
    "GET /is_sleeping",
    "GET /v1/batches",
    "GET /v1/batches/{batch_id}",
    "GET /v1/conversations/{conversation_id}",
    "GET /v1/conversations/{conversation_id}/items",
    "GET /v1/conversations/{conversation_id}/items/{item_id}",
    "GET /v1/files",
    "GET /v1/files/{file_id}",
    "GET /v1/files/{file_id}/content",
    "GET /v1/messages/batches",
    "GET /v1/messages/batches/{batch_id}",
    "GET /v1/messages/batches/{batch_id}/results",
    "GET /v1/organization/usage/completions",
    "GET /v1/usage",
    "POST /api/chat",
    "POST /api/generate",
    "POST /api/show",
    "POST /sleep",
    "POST /v1/batches",
    "POST /v1/batches/{batch_id}/cancel",
    "POST /v1/chat/completions/control",
    "POST /v1/chat/completions/{completion_id}/control",
    "POST /v1/conversations",
    "POST /v1/conversations/{conversation_id}",
    "POST /v1/conversations/{conversation_id}/items",
    "POST /v1/decisions",
    "POST /v1/files",
    "POST /v1/load_lora_adapter",
    "POST /v1/messages/batches",
    "POST /v1/messages/batches/{batch_id}/cancel",
    "POST /v1/moderations",
    "POST /v1/responses/compact",
    "POST /v1/systemone",
    "POST /v1/unload_lora_adapter",
    "POST /wake_up",
]
NEVER = {"POST /v1/engine/kill"}  # 404 unless the operator allows it
RUNNING = ("queued", "in_progress")
CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def url(serve: Serve) -> str:
    return serve(*SCRIPTS, tokens_per_step=3)


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=url) as client:
        yield client


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


@pytest.fixture(scope="module")
def schema(url: str) -> Any:
    return schemathesis.openapi.from_url(f"{url}/openapi.json", timeout=PATIENCE_S)


def test_every_route_is_listed(schema: Any) -> None:
    found = {f"{method.upper()} {path}" for path in schema for method in schema[path]}
    assert found == {*OPERATIONS, *OTHERS}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_any_request_is_answered_as_documented(
    schema: Any, server: httpx2.Client, session: requests.Session, operation: str
) -> None:
    method, path = operation.split()
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=NUM_EXAMPLES[method],
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(schema[path][method], path), st.booleans())
    def check(case: Any, is_kept: bool) -> None:
        if is_kept:
            name_what_is_there(case.path_parameters, server)
        response = case.call(session=session, timeout=PATIENCE_S)
        statuses[response.status_code] += 1
        if response.headers["content-type"][0].startswith("text/event-stream"):
            check_stream(response.text)
            return
        case.validate_response(response, checks=[*CHECKS, content_type_conformance])

    check()
    assert any(status < 400 for status in statuses) == (operation not in NEVER), statuses


def cases(operation: Any, path: str) -> Any:
    """Any request; also bodies of which few fields are random, so that many are answered."""
    anything = operation.as_strategy()
    if path not in BODIES:
        return anything
    least = BODIES[path] | {"model": MODEL}

    def served(case: Any) -> Any:
        if isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = MODEL
        return case

    def with_few(case: Any) -> Any:
        if isinstance(case.body, dict):
            few = list(case.body.items())[len(case.body) - len(case.body) % 3 :]
            case.body = dict(few) | least
        return case

    return st.one_of(anything.map(served), anything.map(with_few))


def name_what_is_there(path_parameters: dict[str, Any], server: httpx2.Client) -> None:
    """Put the served model, or a new response that has ended, into the path."""
    if "model_id" in path_parameters:
        path_parameters["model_id"] = MODEL
    if "response_id" in path_parameters:
        body = {"model": MODEL, "input": "Hi", "background": True}
        answer = server.post("/v1/responses", json=body)
        path_parameters["response_id"] = response_id = answer.raise_for_status().json()["id"]
        while server.get(f"/v1/responses/{response_id}").json()["status"] in RUNNING:
            time.sleep(0.01)


def check_stream(text: str) -> None:
    """Events of JSON up to the end that the route's own clients wait for."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    datas = [block.partition("data: ")[2] for block in blocks]
    assert datas[-1] == "[DONE]" or json.loads(datas[-1])["type"] in ("message_stop", "error")
    for data in datas[:-1]:
        json.loads(data)
