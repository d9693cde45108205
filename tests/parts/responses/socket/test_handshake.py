"""Who may open a WebSocket: decided as for any request, before it is one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from auth.base import Credentials, Principal, Scope
from service.runtime import Runtime
from tests import plain
from tests.parts.responses.socket.conftest import Serve, Server

Fixture = Callable[..., Any]
OPENS: Mapping[str, str] = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


async def refusal(server: Server, **headers: str) -> tuple[int, str]:
    """The status and the code with which a handshake is refused."""
    with pytest.raises(InvalidStatus) as refused:
        await server.open(**headers)
    response = refused.value.response
    assert response.body is not None
    return response.status_code, json.loads(bytes(response.body))["error"]["code"]


async def test_a_key_is_needed_and_its_limits_hold_for_turns(
    serve: Serve, make_runtime: Fixture, named: Fixture, hello: str
) -> None:
    runtime = make_runtime(hello, authenticator=named(requests_per_min=2))
    server = await serve(runtime)
    assert await refusal(server) == (401, "missing_api_key")
    client = await server.open(Authorization="Bearer team-a")
    assert (await client.turn())[-1]["type"] == "response.completed"
    error = (await client.turn())[-1]
    assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(error["error"]["headers"]["retry-after"]) > 0
    await client.send(type="unknown")
    assert (await client.event())["error"]["code"] == "rate_limit_exceeded"
    assert await refusal(server, X_API_Key="team-a") == (429, "rate_limit_exceeded")
    assert (await (await server.open(X_API_Key="team-b")).turn())[-1]["type"] != "error"


class Narrow:
    """Knows everybody, without the scope that is needed."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        return Principal(credentials.value, scopes=frozenset({Scope.MODELS}))


async def test_a_key_without_the_scope_is_refused(
    serve: Serve, make_runtime: Fixture, hello: str
) -> None:
    server = await serve(make_runtime(hello, authenticator=Narrow()))
    assert await refusal(server, X_API_Key="k") == (403, "permission_denied")


class Revoked:
    """Knows a key until it is revoked."""

    def __init__(self) -> None:
        self.is_revoked = False

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        return None if self.is_revoked else Principal(credentials.value)


async def test_a_key_that_is_revoked_ends_the_turns_of_its_connections(
    serve: Serve, make_runtime: Fixture, hello: str
) -> None:
    keys = Revoked()
    client = await (await serve(make_runtime(hello, authenticator=keys))).open(X_API_Key="k")
    assert (await client.turn())[-1]["type"] == "response.completed"
    keys.is_revoked = True
    assert (await client.turn())[-1]["status"] == 401


async def test_what_one_tenant_holds_no_other_sees(
    serve: Serve, make_runtime: Fixture, named: Fixture, hello: str
) -> None:
    server = await serve(make_runtime(hello, authenticator=named()))
    mine = await server.open(X_API_Key="team-a")
    id = (await mine.turn())[-1]["response"]["id"]
    other = await server.open(X_API_Key="rival-a")
    error = (await other.turn(previous_response_id=id))[-1]
    assert error["error"]["code"] == "previous_response_not_found"


async def test_connections_are_limited_per_caller_and_in_all(
    serve: Serve, make_runtime: Fixture, named: Fixture, hello: str
) -> None:
    server = await serve(make_runtime(hello, authenticator=named(), max_connections=16))
    a = [await server.open(X_API_Key="a") for _ in range(2)]
    assert await refusal(server, X_API_Key="a") == (429, "too_many_connections")
    for caller in ("b", "c", "d"):
        for _ in range(2):
            await server.open(X_API_Key=caller)
    assert await refusal(server, X_API_Key="e") == (429, "too_many_connections")
    await a[0].connection.close()
    await a[0].connection.wait_closed()
    assert (await (await server.open(X_API_Key="e")).turn())[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    ("origins", "origin", "status"),
    [
        ((), None, 101),
        ((), "same", 101),
        ((), "https://evil.example", 403),
        ((), "null", 403),
        (("https://page.example",), "https://page.example", 101),
        (("https://page.example",), "https://evil.example", 403),
        (("*",), "https://evil.example", 101),
    ],
)
async def test_pages_may_open_one_if_cors_allows_them_to_read(
    serve: Serve, make_runtime: Fixture, hello: str, origins: Any, origin: Any, status: int
) -> None:
    runtime: Runtime = replace(make_runtime(hello), cors_origins=origins)
    server = await serve(runtime)
    if origin == "same":
        origin = server.url.replace("ws:", "http:")
    headers = {} if origin is None else {"Origin": origin}
    if status == 101:
        assert (await (await server.open(**headers)).turn())[-1]["type"] == "response.completed"
    else:
        assert await refusal(server, **headers) == (403, "cors_refused")


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"Upgrade": None}, 405, "method_not_allowed"),
        ({"Upgrade": "h2c"}, 405, "method_not_allowed"),
        ({"Connection": "close"}, 400, "invalid_websocket_handshake"),
        ({"Sec-WebSocket-Version": "8"}, 426, "unsupported_websocket_version"),
        ({"Sec-WebSocket-Key": None}, 400, "invalid_websocket_handshake"),
        ({"Sec-WebSocket-Key": "c2hvcnQ="}, 400, "invalid_websocket_handshake"),
        ({"Content-Length": "1"}, 400, "invalid_websocket_handshake"),
    ],
)
async def test_what_is_no_handshake_is_told_so(
    serve: Serve, make_runtime: Fixture, hello: str, changes: Any, status: int, code: str
) -> None:
    server = await serve(make_runtime(hello))
    headers = {name: value for name, value in {**OPENS, **changes}.items() if value is not None}
    async with plain.AsyncClient() as http:
        url = server.url.replace("ws:", "http:") + "/v1/responses"
        content = b"x" if "Content-Length" in changes else None
        answer = await http.request("GET", url, headers=headers, content=content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    if status == 405:
        assert answer.headers["Allow"] == "POST"
    if status == 426:
        assert answer.headers["Sec-WebSocket-Version"] == "13"
