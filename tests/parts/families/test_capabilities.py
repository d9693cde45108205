"""What the engine cannot do is a 400 that names the field, before the engine hears of it."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from auth.base import Principal
from engines.base import Capabilities

SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "f", "strict": True, "parameters": SCHEMA}}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


def body_of(path: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hi"}]
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": messages},
        TEXT: {"prompt": "Hi"},
        RESPONSES: {"input": "Hi"},
        MESSAGES: {"messages": messages, "max_tokens": 5},
    }
    return {"model": "gpt-oss-20b"} | bodies[path]


CASES: list[tuple[str, str | dict[str, Any], dict[str, Any], str, str]] = [
    (CHAT, "seed", {"seed": 7}, "seed", "seed is 7; .* not support it; leave it out"),
    (TEXT, "top_k", {"top_k": 5}, "top_k", "top_k is 5; "),
    (MESSAGES, "top_k", {"top_k": 5}, "top_k", "top_k is 5; "),
    (CHAT, "min_p", {"min_p": 0.5}, "min_p", "min_p is 0.5; "),
    (CHAT, "min_tokens", {"min_tokens": 2}, "min_tokens", "min_tokens is 2; "),
    (TEXT, "logit_bias", {"logit_bias": {"1": 2}}, "logit_bias", "given for 1 tokens"),
    (CHAT, "presence_penalty", {"presence_penalty": 1}, "presence_penalty", "is 1.0"),
    (
        CHAT,
        "frequency_penalty",
        {"frequency_penalty": 1},
        "frequency_penalty",
        "is 1.0",
    ),
    (
        TEXT,
        "repetition_penalty",
        {"repetition_penalty": 2},
        "repetition_penalty",
        "2.0",
    ),
    (
        RESPONSES,
        "repetition_detection",
        {"repetition_detection": {"max_pattern_size": 8, "min_count": 3}},
        "repetition_detection",
        "repetition_detection is given; .* leave it out",
    ),
    (CHAT, "priority", {"priority": 3}, "priority", "priority is 3; "),
    (
        CHAT,
        "grammar",
        {"response_format": FORMAT},
        "response_format",
        "structured outputs",
    ),
    (CHAT, "grammar", {"tools": [TOOL]}, "tools", "tools needs structured outputs"),
    (
        CHAT,
        {"dialects": ["regex"]},
        {"response_format": FORMAT},
        "response_format.json_schema.schema",
        "is written as json_schema; .* follows regex; change it",
    ),
    (
        CHAT,
        {"max_logprobs": 2},
        {"logprobs": True, "top_logprobs": 3},
        "top_logprobs",
        "is 3; ",
    ),
    (TEXT, {"max_logprobs": 2}, {"logprobs": 3}, "logprobs", "logprobs is 3; .* at most 2; change"),
    (RESPONSES, {"max_logprobs": 2}, {"top_logprobs": 3}, "top_logprobs", "top_logprobs is 3; "),
]


@pytest.mark.parametrize(
    ("path", "lacks", "wish", "param", "message"), CASES, ids=lambda v: str(v)[:24]
)
async def test_what_the_engine_cannot_do_is_a_400_that_names_the_field(
    make_client: Any,
    make_runtime: Any,
    path: str,
    lacks: str | dict[str, Any],
    wish: dict[str, Any],
    param: str,
    message: str,
) -> None:
    fewer = {"lacks": [lacks]} if isinstance(lacks, str) else lacks
    narrowed = msgspec.convert(fewer, Capabilities)
    runtime = make_runtime("<|channel|>final<|message|>Yes<|return|>", capabilities=narrowed)
    client = await make_client(runtime)
    if path == RESPONSES and "top_logprobs" in wish:
        wish = wish | {"include": ["message.output_text.logprobs"]}
    for stream in (False, True):
        refused = await client.post(path, json=body_of(path) | wish | {"stream": stream})
        error = refused.json()["error"]
        assert refused.status_code == 400, error
        if path != MESSAGES:  # whose errors have neither
            assert (error["param"], error["code"]) == (param, "not_supported")
        assert re.search(message, error["message"]), error
    assert (await runtime.engine.stats()).prompt_tokens == 0
    assert (await client.post(path, json=body_of(path))).status_code == 200


async def test_a_tenants_prompts_are_not_mixed_by_an_engine_that_would(
    make_client: Any, make_runtime: Any
) -> None:
    class Tenant:
        """Whoever asks is of one tenant."""

        async def authenticate(self, *_: Any, **__: Any) -> Principal:
            return Principal(id="key", tenant_id="a")

    lacking = Capabilities(frozenset({"cache_salt"}))
    runtime = make_runtime("Yes<|return|>", capabilities=lacking, authenticator=Tenant())
    client = await make_client(runtime)
    headers = {"Authorization": "Bearer key"}
    refused = await client.post(CHAT, json=body_of(CHAT), headers=headers)
    assert refused.status_code == 501
    assert "cannot separate the prefix caches of tenants" in refused.json()["error"]["message"]
