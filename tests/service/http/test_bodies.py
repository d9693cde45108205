"""Bodies that are no good: always a 4xx in the one shape, never a 5xx."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from service.http.body import MAX_DEPTH, check_shape, parse
from tests.examples import any_text, examples

Fixture = Callable[..., Any]

PATH = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
PRIMITIVES = st.none() | st.booleans() | st.integers() | st.floats() | any_text(max_size=8)
KEYS = st.sampled_from(
    ["messages", "model", "role", "content", "tools", "function", "stop", "logit_bias", "x"]
)
VALUES = st.recursive(
    PRIMITIVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@pytest.fixture
async def client(make_runtime: Fixture, make_client: Fixture) -> Any:
    runtime = make_runtime("<|channel|>final<|message|>Hi<|return|>", max_body_bytes=2048)
    return await make_client(runtime)


@pytest.mark.parametrize(
    ("body", "code", "word"),
    [
        (b"", "invalid_json", "empty"),
        (b"[]", "invalid_json", "object"),
        (b"null", "invalid_json", "object"),
        (b'"text"', "invalid_json", "object"),
        (b"{", "invalid_json", "not valid JSON"),
        (b'{"model": "m",}', "invalid_json", "not valid JSON"),
        (b'{"model": NaN}', "invalid_json", "not valid JSON"),
        (b'{"model": "\xff"}', "invalid_json", "UTF-8"),
        (b'{"model": "\\ud800"}', "invalid_json", "\\ud800 is half of a surrogate pair"),
        (b"\xef\xbb\xbf{}", "invalid_json", "byte order mark"),
        (b'{"temperature": 1e999}', "invalid_json", "too large"),
        (b'{"messages": ' + b"[" * 200 + b"]" * 200 + b"}", "invalid_json", "deeper"),
        (b"[" * 1000, "invalid_json", ""),
        (b'{"model": "m"}', "missing_required_parameter", "messages"),
    ],
)
async def test_a_bad_body_is_a_400_that_says_why(
    client: Any, body: bytes, code: str, word: str
) -> None:
    response = await client.post(PATH, content=body, headers=JSON)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["code"] == code
    assert word in error["message"]


async def test_json_under_another_content_type_is_explained(client: Any) -> None:
    response = await client.post(PATH, content=b"{}", headers={"content-type": "text/plain"})
    assert response.status_code == 400
    assert "Content-Type: application/json" in response.json()["error"]["message"]


async def test_a_compressed_body_is_refused_by_its_encoding(client: Any) -> None:
    response = await client.post(
        PATH, content=b"\x1f\x8b", headers=JSON | {"content-encoding": "gzip"}
    )
    assert response.status_code == 415
    assert "Content-Encoding is 'gzip'" in response.json()["error"]["message"]


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_body_over_the_limit_is_a_413(client: Any, is_announced: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b" " * 1000

    content = b" " * 3000 if is_announced else pieces()
    response = await client.post(PATH, content=content, headers=JSON)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"
    assert "2048" in response.json()["error"]["message"]


def test_the_depth_limit_counts_levels() -> None:
    check_shape(parse(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH))
    with pytest.raises(HTTPException):
        check_shape(parse(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)))


@examples(300)
@given(body=st.binary(max_size=60))
def test_any_bytes_parse_or_are_refused(body: bytes) -> None:
    with contextlib.suppress(HTTPException):  # anything else would be a 500
        check_shape(parse(body))


def test_an_endless_number_is_refused() -> None:
    with pytest.raises(HTTPException, match="too large"):
        parse(b"9" * 5000)


async def test_no_body_of_whatever_json_is_a_server_error(client: Any, chat_body: Fixture) -> None:
    samples: list[dict[str, Any]] = []

    @examples(200)
    @given(st.dictionaries(KEYS, VALUES, max_size=4))
    def collect(changes: dict[str, Any]) -> None:
        samples.append(changes)

    collect()
    for changes in samples:
        content = json.dumps(chat_body(**changes)).encode("utf-8", "surrogatepass")
        response = await client.post(PATH, content=content, headers=JSON)
        assert response.status_code < 500, (changes, response.text)
        assert response.status_code == 200 or response.json()["error"]["message"]
