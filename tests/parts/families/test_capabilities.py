"""What the engine cannot do is a 400 that names the field, before the engine hears of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import BaseModel

from auth.base import Principal
from engines.base import Capabilities
from engines.fields import FIELDS
from parts.completions.schema import CompletionRequest
from parts.messages.schema import MessagesRequest
from parts.responses.schemas.request import ResponseRequest
from service.api.chat.schema import ChatRequest
from tests.parts.families.table import BODIES, CHAT, MESSAGES, MODEL, RESPONSES, TEXT

SCHEMAS: dict[str, type[BaseModel]] = {
    CHAT: ChatRequest,
    TEXT: CompletionRequest,
    RESPONSES: ResponseRequest,
    MESSAGES: MessagesRequest,
}
SCRIPT = "<|channel|>final<|message|>Yes<|return|>"
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "f", "strict": True, "parameters": SCHEMA}}
GRAMMAR = Capabilities(frozenset({"grammar"}))
REGEX, TWO = Capabilities(dialects=("regex",)), Capabilities(max_logprobs=2)
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 3}

# Of each field that an engine may lack: a value, and what the error says of it.
WISHES: dict[str, tuple[Any, str]] = {
    "top_k": (5, "5"),
    "min_p": (0.5, "0.5"),
    "presence_penalty": (1, "1.0"),
    "frequency_penalty": (1, "1.0"),
    "repetition_penalty": (2, "2.0"),
    "logit_bias": ({"1": 2}, "given for 1 tokens"),
    "min_tokens": (2, "2"),
    "cache_salt": ("a", "given"),
    "seed": (7, "7"),
    "repetition_detection": ({"max_pattern_size": 8, "min_count": 3}, "given"),
    "prompt_logprobs": (2, "asks for log-probabilities of the prompt"),
}


async def check(
    make_client: Any, runtime: Any, path: str, wish: dict[str, Any], param: str, message: str
) -> None:
    client = await make_client(runtime)
    for stream in (False, True):
        body = MODEL | BODIES[path] | wish
        if "prompt_logprobs" not in wish:  # which no stream has
            body["stream"] = stream
        refused = await client.post(path, json=body)
        error = refused.json()["error"]
        assert refused.status_code == 400, error
        if path != MESSAGES:  # whose errors have neither
            assert (error["param"], error["code"]) == (param, "not_supported")
        assert re.search(message, error["message"]), error
    assert (await runtime.engine.stats()).prompt_tokens == 0
    assert (await client.post(path, json=MODEL | BODIES[path])).status_code == 200


def test_each_field_that_may_be_lacking_is_tried_here() -> None:
    asked = {name for schema in SCHEMAS.values() for name in schema.model_fields}
    assert WISHES.keys() == {row.name for row in FIELDS if row.may_lack} & asked


@pytest.mark.parametrize("name", WISHES)
async def test_a_field_that_the_engine_lacks_is_refused_by_every_family_that_has_it(
    make_client: Any, make_runtime: Any, name: str
) -> None:
    value, says = WISHES[name]
    for path, schema in SCHEMAS.items():
        if name in schema.model_fields:
            runtime = make_runtime(SCRIPT, capabilities=Capabilities(frozenset({name})))
            message = f"^{name} (is )?{re.escape(says)}.*; leave it out"
            await check(make_client, runtime, path, {name: value}, name, message)


@pytest.mark.parametrize(
    ("path", "fewer", "wish", "param", "message"),
    [
        (CHAT, GRAMMAR, {"response_format": FORMAT}, "response_format", "structured outputs"),
        (CHAT, GRAMMAR, {"tools": [TOOL]}, "tools", "tools needs structured outputs"),
        (
            CHAT, REGEX, {"response_format": FORMAT}, "response_format.json_schema.schema",
            "is written as json_schema; .* follows regex; change it",
        ),
        (CHAT, TWO, {"logprobs": True, "top_logprobs": 3}, "top_logprobs", "is 3; "),
        (TEXT, TWO, {"logprobs": 3}, "logprobs", "logprobs is 3; .* at most 2; change"),
        (RESPONSES, TWO, LOGPROBS, "top_logprobs", "top_logprobs is 3; "),
    ],
    ids=lambda value: str(value)[:24],
)  # fmt: skip
async def test_what_is_more_than_a_field_is_named_by_its_place(
    make_client: Any, make_runtime: Any, path: str, fewer: Any, wish: Any, param: str, message: str
) -> None:
    runtime = make_runtime(SCRIPT, capabilities=fewer)
    await check(make_client, runtime, path, wish, param, message)


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
    refused = await client.post(CHAT, json=MODEL | BODIES[CHAT], headers=headers)
    assert refused.status_code == 501
    assert "cannot separate the prefix caches of tenants" in refused.json()["error"]["message"]
