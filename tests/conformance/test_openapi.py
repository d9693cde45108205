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
    "/v1/responses/compact": {"input": "Hi"},
    "/v1/decisions": {
        "input": "Hi",
        "questions": [{"type": "predicate", "name": "kind", "instructions": "It is kind."}],
    },
    "/v1/systemone": {
        "state": {"text": "Hi"},
        "questions": {"kind": {"type": "noul", "instructions": "Is it kind?"}},
    },
    "/v1/moderations": {"input": "Hi"},
    "/v1/chat/completions/control": {"id": "chatcmpl-0", "action": "reasoning_end"},
    "/v1/chat/completions/{completion_id}/control": {"action": "reasoning_end"},
    "/api/chat": {"messages": [{"role": "user", "content": "Hi"}]},
    "/api/generate": {"prompt": "Hi"},
    "/api/show": {},
}
ITEMS = [{"role": "user", "content": "Hi"}]
LINE = {
    "custom_id": "1",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": MODEL, **BODIES["/v1/chat/completions"]},
}
MESSAGE_BATCH = {
    "requests": [{"custom_id": "1", "params": {"model": MODEL, **BODIES["/v1/messages"]}}]
}
BODIES_WITHOUT_MODEL: dict[str, dict[str, Any]] = {
    "/v1/conversations": {"items": ITEMS},
    "/v1/conversations/{conversation_id}": {"metadata": {}},
    "/v1/conversations/{conversation_id}/items": {"items": ITEMS},
    "/v1/files": {"file": json.dumps(LINE), "purpose": "batch"},
    "/v1/batches": {
        "input_file_id": "file-0",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
    "/v1/messages/batches": MESSAGE_BATCH,
    "/v1/load_lora_adapter": {"lora_name": "one", "lora_path": "one"},
    "/v1/unload_lora_adapter": {"lora_name": "one"},
}
OPERATIONS = [
    *(f"POST {path}" for path in (*BODIES, *BODIES_WITHOUT_MODEL)),
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
    "GET /api/ps",
    "GET /api/tags",
    "GET /api/version",
    "GET /is_sleeping",
    "POST /sleep",
    "GET /v1/batches",
    "GET /v1/batches/{batch_id}",
    "POST /v1/batches/{batch_id}/cancel",
    "DELETE /v1/conversations/{conversation_id}",
    "GET /v1/conversations/{conversation_id}",
    "GET /v1/conversations/{conversation_id}/items",
    "DELETE /v1/conversations/{conversation_id}/items/{item_id}",
    "GET /v1/conversations/{conversation_id}/items/{item_id}",
    "GET /v1/files",
    "DELETE /v1/files/{file_id}",
    "GET /v1/files/{file_id}",
    "GET /v1/files/{file_id}/content",
    "GET /v1/messages/batches",
    "DELETE /v1/messages/batches/{batch_id}",
    "GET /v1/messages/batches/{batch_id}",
    "POST /v1/messages/batches/{batch_id}/cancel",
    "GET /v1/messages/batches/{batch_id}/results",
    "GET /v1/organization/usage/completions",
    "GET /v1/usage",
    "POST /wake_up",
]
# What is never done here: the operator allows no kill of the engine, the scripted engine has no
# adapters, and no answer of a test is still reasoning when the next request comes.
NEVER = {
    "POST /v1/engine/kill",
    "POST /v1/load_lora_adapter",
    "POST /v1/unload_lora_adapter",
    "POST /v1/chat/completions/control",
    "POST /v1/chat/completions/{completion_id}/control",
}
OF_THE_MODEL = '"code":"compaction_failed"'  # 500: two of the three scripts are no summary
RUNNING = ("queued", "in_progress", "validating", "finalizing")
CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def url(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A server with all parts that need nothing but a setting."""
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    policy.write_text("categories: {spam: Adverts.}\n")
    given = {
        "NIM_USAGE": "1",
        "NIM_OLLAMA_PORT": "0",  # that of the server
        "NIM_MODERATION_POLICY_PATH": str(policy),
        "NIM_SLEEP_IDLE_S": "3600",
    }
    return serve(*SCRIPTS, environment=given, tokens_per_step=3)


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
    assert found == {*OPERATIONS}


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
            name_what_is_there(case, server)
        response = case.call(session=session, timeout=PATIENCE_S)
        statuses[response.status_code] += 1
        kind = response.headers.get("content-type", [""])[0]
        if kind.startswith("text/event-stream"):
            check_stream(response.text)
            return
        if OF_THE_MODEL in response.text:
            return
        if "jsonl" in kind or "ndjson" in kind:
            for line in response.text.strip().split("\n"):
                json.loads(line)
        case.validate_response(response, checks=[*CHECKS, content_type_conformance])

    check()
    assert any(status < 400 for status in statuses) == (operation not in NEVER), statuses


def cases(operation: Any, path: str) -> Any:
    """Any request; also bodies of which few fields are random, so that many are answered."""
    anything = operation.as_strategy()
    if path in BODIES:
        least = BODIES[path] | {"model": MODEL}
    elif path in BODIES_WITHOUT_MODEL:
        least = BODIES_WITHOUT_MODEL[path]
    else:
        return anything

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


def name_what_is_there(case: Any, server: httpx2.Client) -> None:
    """Put what exists into a request: the served model, or something new that has ended."""
    path, given = case.path, case.path_parameters
    if "model_id" in given:
        given["model_id"] = MODEL
    if "response_id" in given:
        body = {"model": MODEL, "input": "Hi", "background": True}
        given["response_id"] = made(server, "/v1/responses", "status", json=body)
    if "conversation_id" in given:
        given["conversation_id"] = id = made(server, "/v1/conversations", json={"items": ITEMS})
        if "item_id" in given:
            items = server.get(f"/v1/conversations/{id}/items").raise_for_status().json()
            given["item_id"] = items["data"][0]["id"]
    if "file_id" in given:
        given["file_id"] = new_file(server)
    if "batch_id" in given and path.startswith("/v1/messages"):
        status = "processing_status"
        given["batch_id"] = made(server, "/v1/messages/batches", status, json=MESSAGE_BATCH)
    elif "batch_id" in given:
        body = BODIES_WITHOUT_MODEL["/v1/batches"] | {"input_file_id": new_file(server)}
        given["batch_id"] = made(server, "/v1/batches", "status", json=body)
    if path == "/v1/batches" and isinstance(case.body, dict):
        case.body["input_file_id"] = new_file(server)


def new_file(server: httpx2.Client) -> str:
    files = {"file": ("in.jsonl", json.dumps(LINE))}
    return made(server, "/v1/files", data={"purpose": "batch"}, files=files)


def made(server: httpx2.Client, path: str, status: str | None = None, **request: Any) -> str:
    """The id of something new; where it has a status, once it does not run any more."""
    id: str = server.post(path, **request).raise_for_status().json()["id"]
    while status and server.get(f"{path}/{id}").raise_for_status().json()[status] in RUNNING:
        time.sleep(0.01)
    return id


def check_stream(text: str) -> None:
    """Events of JSON up to the end that the route's own clients wait for."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    datas = [block.partition("data: ")[2] for block in blocks]
    assert datas[-1] == "[DONE]" or json.loads(datas[-1])["type"] in ("message_stop", "error")
    for data in datas[:-1]:
        json.loads(data)
