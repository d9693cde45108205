"""What a caller may do: routes by scope, models by list, prompts apart by tenant."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from auth.base import KeysUnavailable, Principal, Scope
from service.run import server
from service.telemetry import logs
from service.telemetry.logs import Redactor

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 4}


Ask = Callable[..., Any]


def as_(word: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {word}"}


def scoped(*scopes: Scope) -> Principal:
    return Principal("p", scopes=frozenset(scopes))


async def test_every_route_has_a_scope_of_its_own(client_of: Ask) -> None:
    """A new route is `admin` until somebody decides."""
    client = await client_of()
    app = client._transport.app
    scopes = {route.path: app.paths.row(route.path).scope for route in app.routes}
    of_core = {row.path for family in server._CORE for row in family.ROUTES.rows}
    admin = {path for path, scope in scopes.items() if scope is Scope.ADMIN}
    assert admin & of_core == {"/v1/engine/kill"}  # what parts have, their own tests hold
    assert scopes[CHAT] is Scope.INFERENCE


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("POST", CHAT, Scope.INFERENCE),
        ("GET", "/v1/models", Scope.MODELS),
        ("GET", "/v1/models/m", Scope.MODELS),
        ("GET", "/v1/metadata", Scope.MODELS),
        ("GET", "/v1/manifest", Scope.MODELS),
        ("GET", "/v1/license", Scope.MODELS),
        ("GET", "/v1/metrics", Scope.METRICS),
        ("GET", "/load", Scope.METRICS),
        ("POST", "/v1/engine/kill", Scope.ADMIN),
        ("GET", "/v1/unheard-of", Scope.ADMIN),
    ],
)
async def test_a_route_takes_its_scope_and_no_other(
    client_of: Ask, method: str, path: str, needed: Scope
) -> None:
    client = await client_of(one=scoped(needed), rest=scoped(*set(Scope) - {needed}))
    assert (await client.request(method, path, headers=as_("one"))).status_code not in (401, 403)
    refused = await client.request(method, path, headers=as_("rest"))
    assert refused.status_code == 403
    assert refused.headers["www-authenticate"] == 'Bearer error="insufficient_scope"'


async def test_a_refusal_has_the_shape_of_the_routes_api(client_of: Ask) -> None:
    client = await client_of(p=scoped(Scope.METRICS))
    refused = (await client.post(CHAT, headers=as_("p"))).json()["error"]
    assert (refused["code"], refused["type"]) == ("permission_denied", "permission_error")


async def test_a_model_off_the_list_is_neither_listed_nor_used(client_of: Ask) -> None:
    client = await client_of(
        some=Principal("s", models=("other",)), all=Principal("a"), it=Principal("i", models=("m",))
    )
    assert (await client.get("/v1/models", headers=as_("some"))).json()["data"] == []
    assert (await client.get("/v1/models/m", headers=as_("some"))).status_code == 403
    assert (await client.post(CHAT, json=BODY, headers=as_("some"))).status_code == 403
    for path, body in (("/tokenize", {"prompt": "Hi"}), ("/detokenize", {"tokens": [1]})):
        for model in ({}, {"model": "m"}):  # left out, it is the one that is served
            answer = await client.post(path, json=body | model, headers=as_("some"))
            assert answer.status_code == 403
            answer = await client.post(path, json=body | model, headers=as_("it"))
            assert answer.status_code == 200
    for word in ("all", "it"):
        assert (await client.post(CHAT, json=BODY, headers=as_(word))).status_code == 200
        assert (await client.get("/v1/models", headers=as_(word))).json()["data"]


async def test_a_list_with_any_name_of_the_model_allows_it_under_all(client_of: Ask) -> None:
    client = await client_of(it=Principal("i", models=("openai/m",)))
    [card] = (await client.get("/v1/models", headers=as_("it"))).json()["data"]
    for name in ("openai/m", card["id"]):
        answer = await client.post(CHAT, json=BODY | {"model": name}, headers=as_("it"))
        assert answer.status_code == 200


async def test_a_tenant_hits_its_own_prefixes_and_no_others(client_of: Ask) -> None:
    client = await client_of(
        a=Principal("a", tenant_id="t1"),
        a2=Principal("a2", tenant_id="t1"),
        b=Principal("b", tenant_id="t2"),
    )

    async def num_cached(word: str) -> int:
        answer = await client.post(CHAT, json=BODY, headers=as_(word))
        cached: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached

    assert await num_cached("a") == 0
    assert await num_cached("b") == 0
    assert await num_cached("a2") > 0


async def test_wrong_keys_are_slowed_and_right_ones_are_not(client_of: Ask) -> None:
    client = await client_of(right=Principal("p"))
    assert (await client.get("/v1/models", headers=as_("right"))).status_code == 200
    codes = [
        (await client.get("/v1/models", headers=as_(f"wrong{n}"))).status_code for n in range(12)
    ]
    assert codes == [401] * 10 + [429] * 2
    slowed = await client.get("/v1/models", headers=as_("wrong"))
    assert slowed.headers["retry-after"] == "2"
    assert slowed.json()["error"]["code"] == "too_many_failures"
    assert (await client.get("/v1/models", headers=as_("right"))).status_code == 200
    assert (await client.get("/v1/health/live")).status_code == 200


async def test_failures_are_counted_by_kind(client_of: Ask) -> None:
    client = await client_of(narrow=scoped(Scope.METRICS))
    for headers in ({}, as_("wrong"), as_("narrow")):
        await client.get("/v1/models", headers=headers)
    text = (await client.get("/v1/metrics", headers=as_("narrow"))).text
    counted = re.findall(r'auth_failures_total\{.*?reason="(\w+)".*?\} 1\.0', text)
    assert sorted(counted) == ["forbidden", "invalid", "missing"]


async def test_decisions_are_audited_with_their_reason_and_no_credential(
    client_of: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    client = await client_of(sesame=Principal("ann"))
    await client.get("/v1/models", headers=as_("sesame") | {"X-Request-Id": "r1"})
    refused = await client.get("/v1/models", headers=as_("wrong-word"))
    lines = [record for record in caplog.records if record.name == "harmonium.audit"]
    assert lines[0].getMessage() == (
        "auth.granted caller=ann address=192.0.2.7 method=GET path=/v1/models request=r1"
    )
    assert lines[0].__dict__["audit"]["caller"] == "ann"
    assert lines[1].levelname == "WARNING"
    assert 'reason="unknown word"' in lines[1].getMessage()
    assert "unknown word" not in refused.text
    assert "sesame" not in caplog.text
    assert "wrong-word" not in caplog.text


async def test_a_flood_without_credentials_fills_no_log_and_is_counted(
    client_of: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    client = await client_of(scraper=scoped(Scope.METRICS))
    for _ in range(200):
        assert (await client.get("/v1/models")).status_code == 401
    assert 20 <= sum("auth.denied" in line for line in caplog.messages) < 60
    assert sum("-> 401" in line for line in caplog.messages) < 60
    text = (await client.get("/v1/metrics", headers=as_("scraper"))).text
    assert 'auth_failures_total{reason="missing"} 200.0' in text


async def test_nothing_that_needs_no_key_fills_the_log(
    client_of: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    """A path that is open, and a request that is refused before anyone asks for its key."""
    caplog.set_level(logging.INFO)
    client = await client_of(sesame=Principal("ann"))
    for _ in range(50):
        await client.get("/v1/version")
        assert (await client.get("/v1/models", headers={"X-Request-Id": "?"})).status_code == 400
    assert 20 <= len(ours(caplog)) < 40
    caplog.clear()
    for _ in range(50):
        assert (await client.get("/v1/models", headers=as_("sesame"))).status_code == 200
    assert sum("-> 200" in line for line in caplog.messages) == 50, "callers with a key are told"


async def test_a_provider_that_is_down_fills_no_log(
    client_of: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    client = await client_of(down=KeysUnavailable("the provider is down"))
    for _ in range(100):
        assert (await client.get("/v1/models", headers=as_("down"))).status_code == 503
    assert 20 <= sum("auth.denied" in line for line in caplog.messages) < 60
    assert len(ours(caplog)) < 80


def ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines of the server, without those of the test's client."""
    return [each.getMessage() for each in caplog.records if each.name.startswith("harmonium")]


async def test_a_forged_line_in_a_path_stays_one_line(
    client_of: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    client = await client_of()
    await client.get("/v1/models%0aauth.granted%20caller=root", headers=as_("x"))
    [line] = [record for record in caplog.records if record.name == "harmonium.audit"]
    assert "\n" not in line.getMessage()
    assert 'path="/v1/models\\nauth.granted caller=root"' in line.getMessage()


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("header", ["Authorization", "X-API-Key"])
async def test_a_key_beyond_ascii_may_come_in_either_encoding(
    client_of: Ask, encoding: str, header: str
) -> None:
    client = await client_of(**{"schl\u00fcssel-f\u00fcr-alle": Principal("p")})
    value = "schl\u00fcssel-f\u00fcr-alle".encode(encoding)
    sent = b"Bearer " + value if header == "Authorization" else value
    answer = await client.get("/v1/models", headers={header.encode(): sent})
    assert answer.status_code == 200


async def test_a_request_is_one_short_line_and_may_be_none(
    client_of: Ask, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    for name in ("harmonium.audit", "harmonium.access"):
        monkeypatch.setattr(logging.getLogger(name), "filters", [])
    client = await client_of(sesame=Principal("ann"))
    headers = {"Authorization": "Bearer sesame"}

    async def told(access_log: bool, audit_log: Any) -> list[str]:
        caplog.clear()
        logging.getLogger("harmonium.audit").filters.clear()
        logs.choose(access_log, audit_log)
        await client.get("/v1/models", headers=headers)
        await client.get("/v1/models", headers={"Authorization": "Bearer wrong"})
        written = [logs.JSONFormatter(Redactor()).format(record) for record in caplog.records]
        return [line for line in written if '"harmonium.a' in line]

    both = await told(True, "all")
    assert messages_of(both) == [
        "auth.granted",
        "GET -> 200",
        "auth.denied",
        "GET -> 401",
    ]
    short = await told(True, "refused")
    assert messages_of(short) == messages_of(both)[1:]
    assert json.loads(short[0])["access"]["caller"] == "ann"
    assert "exc_info" not in short[0]
    assert len(short[0]) < 600
    none = await told(False, "refused")
    assert messages_of(none) == ["auth.denied"]
    logging.getLogger("harmonium.access").setLevel(logging.NOTSET)


def messages_of(lines: list[str]) -> list[str]:
    return [json.loads(line)["message"] for line in lines]
