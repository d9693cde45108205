"""What benchmark tools send to set an answer's length and to count it while it comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Fixture = Callable[..., Any]

CHAT, TEXT, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    TEXT: {"prompt": "Hi"},
    RESPONSES: {"input": "Hi"},
    MESSAGES: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40},
}
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
SCRIPT = THOUGHT + "<|channel|>final<|message|>Hello!<|return|>"
LIMIT = {CHAT: "max_tokens", TEXT: "max_tokens", RESPONSES: "max_output_tokens"}
FUNCTION = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {}}}


@pytest.fixture
async def post(make_client: Fixture, make_runtime: Fixture) -> Any:
    client = await make_client(make_runtime(SCRIPT))

    async def post(path: str, **changes: Any) -> Any:
        return await client.post(path, json={"model": "gpt-oss-20b"} | BODIES[path] | changes)

    return post


def _num_tokens(usage: dict[str, Any]) -> int:
    return int(usage.get("completion_tokens") or usage.get("output_tokens") or 0)


@pytest.mark.parametrize("path", LIMIT)
async def test_ignore_eos_goes_on_to_the_limit(post: Fixture, path: str) -> None:
    """guidellm#979: what follows the end is text too, and breaks nothing."""
    plain = (await post(path, **{LIMIT[path]: 60})).json()
    assert _num_tokens(plain["usage"]) < 20
    answer = (await post(path, **{LIMIT[path]: 60}, ignore_eos=True)).json()
    assert _num_tokens(answer["usage"]) == 60
    shown = str(answer)
    assert shown.count("Hello!") >= 4
    assert "<|" not in shown


@pytest.mark.parametrize("path", LIMIT)
async def test_min_tokens_keeps_an_answer_from_ending(post: Fixture, path: str) -> None:
    answer = (await post(path, **{LIMIT[path]: 60}, min_tokens=20)).json()
    assert 20 <= _num_tokens(answer["usage"]) < 60


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"min_tokens": 11, "max_tokens": 10}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "response_format": {"type": "json_object"}}, "min_tokens"),
        ({"ignore_eos": True, "response_format": {"type": "json_object"}}, "ignore_eos"),
        ({"ignore_eos": True, "tools": [FUNCTION]}, "ignore_eos"),
        ({"stream_options": {"continuous_usage_stats": True}}, "stream_options"),
        ({"nvext": {"guided_json": {}}}, "nvext"),
        ({"chat_template_kwargs": {"thinking": True}}, "chat_template_kwargs.thinking"),
        ({"reasoning": {"max_tokens": 3}}, "reasoning.max_tokens"),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "reasoning.effort"),
    ],
)
async def test_what_cannot_be_is_refused(
    post: Fixture, changes: dict[str, Any], param: str
) -> None:
    response = await post(CHAT, **changes)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


async def test_nvext_is_told_where_its_fields_are(post: Fixture) -> None:
    for path in (CHAT, TEXT):
        message = (await post(path, nvext={"ignore_eos": True})).json()["error"]["message"]
        assert "`ignore_eos`" in message
        assert "`structured_outputs`" in message


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_every_chunk_counts_on_request(post: Fixture, events: Fixture, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    response = await post(path, stream=True, stream_options=options, max_tokens=60)
    *chunks, last, done = events(response.text)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == last["usage"]["completion_tokens"] > counts[0]
    assert last["choices"] == []
    assert done == "[DONE]"
    only = {"continuous_usage_stats": True}
    *chunks, done = events((await post(path, stream=True, stream_options=only)).text)
    assert all(chunk["choices"] and chunk["usage"]["prompt_tokens"] for chunk in chunks)


@pytest.mark.parametrize("path", BODIES)
async def test_the_end_of_the_text_ends_every_answer(
    make_client: Fixture, make_runtime: Fixture, path: str
) -> None:
    script = "<|channel|>final<|message|>ALPHA<|endoftext|>BETA"
    client = await make_client(make_runtime(script))
    response = await client.post(path, json={"model": "gpt-oss-20b"} | BODIES[path])
    assert "BETA" not in response.text
    assert "ALPHA" in response.text
    assert _num_tokens(response.json()["usage"]) < 10


@pytest.mark.parametrize(
    "changes",
    [
        {"reasoning_effort": "high"},
        {"reasoning": {"effort": "high"}},
        {"chat_template_kwargs": {"reasoning_effort": "high"}},
        {"reasoning": {"effort": "high"}, "chat_template_kwargs": {"reasoning_effort": "high"}},
    ],
)
async def test_effort_has_the_names_that_other_servers_have_for_it(
    make_client: Fixture, make_runtime: Fixture, changes: dict[str, Any]
) -> None:
    client = await make_client(make_runtime(SCRIPT))
    body = {"model": "gpt-oss-20b"} | BODIES[CHAT] | changes
    response = await client.post("/v1/chat/completions/render", json=body)
    assert "Reasoning: high" in response.json()["prompt"]
