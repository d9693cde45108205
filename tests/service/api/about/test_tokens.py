"""/tokenize, /detokenize and /v1/chat/completions/render."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.base import EngineRequest
from service.harmony.vocabulary import (
    END,
    START,
    decode_marked,
    encode_marked,
    encode_text,
    is_ordinary,
    name_of,
)
from tests.examples import examples
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

USER = [{"role": "user", "content": "Say <|end|>"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture
async def client(make_runtime: Fixture, make_client: Fixture) -> Any:
    return await make_client(make_runtime("<|channel|>final<|message|>Hi<|return|>"))


async def test_a_raw_prompt_may_spell_control_tokens(client: Any) -> None:
    body = {"prompt": "<|start|>hé🪿", "return_token_strs": True, "add_special_tokens": True}
    answer = (await client.post("/tokenize", json=body)).json()
    assert answer["tokens"] == [START, *encode_text("hé🪿")]
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 131_072
    assert answer["token_strs"][0] == "<|start|>"
    back = await client.post("/detokenize", json={"tokens": answer["tokens"]})
    assert back.json() == {"prompt": body["prompt"]}


async def test_a_conversation_is_tokenized_as_the_model_would_read_it(client: Any) -> None:
    body = {"model": "gpt-oss-20b", "messages": USER, "tools": [TOOL]}
    rendered = (await client.post("/v1/chat/completions/render", json=body)).json()
    tokenized = (await client.post("/tokenize", json=body)).json()
    assert tokenized["tokens"] == rendered["token_ids"]
    assert tokenized["token_strs"] is None
    closed = (await client.post("/tokenize", json=body | {"add_generation_prompt": False})).json()
    assert closed["tokens"] == rendered["token_ids"][:-2]


async def test_llm_ds_router_gets_the_tokens_of_both_routes(client: Any) -> None:
    """What its endpoint picker sends: template fields with nothing in them."""
    body = {"model": "gpt-oss-20b", "messages": USER}
    plain = (await client.post("/v1/chat/completions/render", json=body)).json()["token_ids"]
    fields = {"add_generation_prompt": True, "continue_final_message": False, "chat_template": None}
    sent = await client.post("/v1/chat/completions/render", json=body | fields)
    assert sent.json()["token_ids"] == plain
    closed = await client.post(
        "/v1/chat/completions/render", json=body | {"add_generation_prompt": False}
    )
    assert closed.json()["token_ids"] == plain[:-2]
    refused = await client.post(
        "/v1/chat/completions/render", json=body | {"continue_final_message": True}
    )
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "continue_final_message"


async def test_llama_cpps_clients_get_the_same_prompt_and_name_no_model(client: Any) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    rendered = await client.post(
        "/v1/chat/completions/render", json={**body, "model": "gpt-oss-20b"}
    )
    assert (await client.post("/apply-template", json=body)).json() == rendered.json()


async def test_the_rendered_prompt_is_the_one_that_runs(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture
) -> None:
    seen: list[EngineRequest] = []

    def script(request: EngineRequest) -> tuple[int, ...]:
        seen.append(request)
        return (200002,)

    client = await make_client(make_runtime(engine=FakeEngine(FakeOptions(), script)))
    body = chat_body(messages=USER, tools=[TOOL], reasoning_effort="high", stream=True)
    rendered = (await client.post("/v1/chat/completions/render", json=body)).json()
    assert not seen
    await client.post("/v1/chat/completions", json=body)
    assert rendered["token_ids"] == list(seen[0].prompt_token_ids)
    assert rendered["count"] == len(rendered["token_ids"])
    assert "Reasoning: high" in rendered["prompt"]
    assert rendered["prompt"].endswith("Say <|end|><|end|><|start|>assistant")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": USER}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": USER, "chat_template": "x"}, "chat_template"),
        ("/tokenize", {"messages": USER, "continue_final_message": True}, "continue_final_message"),
        ("/tokenize", {"messages": [{"role": "tool", "tool_call_id": "x"}]}, "messages[0].tool"),
        ("/tokenize", {"prompt": "a", "x": 1}, "x"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1, 300_000]}, "tokens[1]"),
        ("/detokenize", {"tokens": ["1"]}, "tokens[0]"),
        ("/v1/chat/completions/render", {"model": "gpt-oss-20b"}, "messages"),
    ],
)
async def test_what_is_wrong_is_named(
    client: Any, path: str, body: dict[str, Any], param: str
) -> None:
    response = await client.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)


@pytest.mark.parametrize(
    ("path", "body"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})]
)
async def test_another_model_is_a_404(client: Any, path: str, body: dict[str, Any]) -> None:
    response = await client.post(path, json={"model": "x", **body})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


@examples(150)
@given(st.lists(st.sampled_from(["<|end|>", "<|", "|>", "<|x|>", "end", " é", "🪿", "<|start|>"])))
def test_any_text_survives_encoding_with_marks(pieces: list[str]) -> None:
    text = "".join(pieces)
    token_ids = encode_marked(text)
    assert decode_marked(token_ids) == text
    assert token_ids.count(END) == text.count("<|end|>")
    assert all(is_ordinary(token_id) or name_of(token_id) in text for token_id in token_ids)
