"""Web pages: which may call at all, and which may read the answers (CORS)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from auth.base import Principal
from service.settings.errors import SettingsError
from service.settings.settings import load

Ask = Callable[..., Any]

PAGE = "https://chat.example"
CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}
ALLOWED = "access-control-allow-origin"


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/metadata", "/openapi.json"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example"])
async def test_a_page_whose_name_leads_to_loopback_reads_nothing(
    client_of: Ask, path: str, host: str
) -> None:
    """DNS rebinding: the browser sends no Origin with a GET to the page's own name."""
    client = await client_of(is_local=True)
    refused = await client.get(path, headers={"Host": host})
    assert refused.status_code == 403
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("foreign_host", "Host")
    assert "NIM_API_KEYS" in error["message"]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "127.0.0.1:8000",
        "[::1]:8000",
        "app.localhost",
        "host.docker.internal:8000",
    ],
)
async def test_the_machines_own_names_are_served(client_of: Ask, host: str) -> None:
    client = await client_of(is_local=True)
    assert (await client.get("/v1/models", headers={"Host": host})).status_code == 200


async def test_with_keys_any_name_is_served(client_of: Ask) -> None:
    client = await client_of(sesame=Principal("p"))
    headers = {"Host": "llm.example", "Authorization": "Bearer sesame"}
    assert (await client.get("/v1/models", headers=headers)).status_code == 200


async def test_closed_unless_it_is_set(client_of: Ask) -> None:
    client = await client_of(sesame=Principal("p"))
    preflight = await client.options(CHAT, headers=PREFLIGHT | {"Origin": PAGE})
    assert preflight.status_code == 401
    headers = {"Origin": PAGE, "Authorization": "Bearer sesame"}
    assert ALLOWED not in (await client.get("/v1/models", headers=headers)).headers


@pytest.mark.parametrize(("listed", "said"), [(PAGE, PAGE), ("*", "*")])
async def test_a_listed_page_may_ask_before_it_has_a_key(
    client_of: Ask, listed: str, said: str
) -> None:
    client = await client_of(cors_origins=(listed,), sesame=Principal("p"))
    preflight = await client.options(CHAT, headers=PREFLIGHT | {"Origin": PAGE})
    assert preflight.status_code == 200
    assert preflight.headers[ALLOWED] == said
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in preflight.headers


async def test_answers_streams_and_errors_may_be_read(client_of: Ask) -> None:
    client = await client_of(cors_origins=(PAGE,), sesame=Principal("p"))
    headers = {"Origin": PAGE, "Authorization": "Bearer sesame"}
    answers = {
        200: await client.post(CHAT, json=BODY, headers=headers),
        401: await client.post(CHAT, json=BODY, headers={"Origin": PAGE}),
        404: await client.get("/v1/none", headers=headers),
        400: await client.get("/v1/models", headers=headers | {"X-Request-Id": "no good"}),
    }
    stream = await client.post(CHAT, json=BODY | {"stream": True}, headers=headers)
    assert "[DONE]" in stream.text
    for status, answer in [*answers.items(), (200, stream)]:
        assert answer.status_code == status
        assert answer.headers[ALLOWED] == PAGE
        assert "Origin" in answer.headers["vary"]
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]


async def test_other_pages_may_not(client_of: Ask) -> None:
    client = await client_of(cors_origins=(PAGE,), sesame=Principal("p"))
    for origin in ("https://evil.example", "https://chat.example.evil", "null"):
        preflight = await client.options(CHAT, headers=PREFLIGHT | {"Origin": origin})
        assert preflight.status_code == 400
        assert ALLOWED not in preflight.headers
        assert "Origin" in preflight.headers["vary"]
        error = preflight.json()["error"]
        assert (error["code"], error["param"]) == ("cors_refused", "Origin")
        assert "Disallowed CORS origin" in error["message"]
        headers = {"Origin": origin, "Authorization": "Bearer sesame"}
        assert ALLOWED not in (await client.get("/v1/models", headers=headers)).headers


async def test_a_listed_page_may_call_an_open_server_on_loopback(client_of: Ask) -> None:
    client = await client_of(is_local=True, cors_origins=(PAGE,))
    assert (await client.post(CHAT, json=BODY, headers={"Origin": PAGE})).status_code == 200
    foreign = await client.post(CHAT, json=BODY, headers={"Origin": "https://evil.example"})
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "foreign_page")
    every = await client_of(is_local=True, cors_origins=("*",))
    assert (await every.post(CHAT, json=BODY, headers={"Origin": PAGE})).status_code == 200


@pytest.mark.parametrize(
    "value", ["chat.example", "https://chat.example/", "https://*.example", "null", "HTTPS://A.B"]
)
def test_what_is_no_origin_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match=r"--cors-allow-origins .* not an origin"):
        load({"cors_allow_origins": f"https://a.example,{value}"})


def test_origins_are_a_list() -> None:
    settings = load({"cors_allow_origins": "https://a.example, http://[::1]:3000,*"})
    assert settings.cors_origins == ("https://a.example", "http://[::1]:3000", "*")
