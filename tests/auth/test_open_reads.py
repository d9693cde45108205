"""`NIM_READ_WITHOUT_KEY` opens what it names to callers without a key, and nothing else."""

from collections.abc import Awaitable, Callable

import httpx2
import pytest

from auth.base import Principal, Scope
from auth.throttle import ThrottlePolicy
from service.http import authentication
from service.http.paths import READS
from service.settings.errors import SettingsError
from service.settings.settings import load

Ask = Callable[..., Awaitable[httpx2.AsyncClient]]
RENDER = "/v1/chat/completions/render"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
ROUTES = {
    "metrics": [("GET", "/metrics"), ("GET", "/v1/metrics")],
    "models": [("GET", "/v1/models"), ("GET", "/v1/models/m")],
    "render": [("POST", RENDER)],
}
CLOSED = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/models/m"),
    ("POST", "/v1/models"),
    ("GET", RENDER),
    ("GET", "/v1/metadata"),
    ("POST", "/tokenize"),
    ("GET", "/metrics/more"),
]


async def status_of(client: httpx2.AsyncClient, method: str, path: str, **more: object) -> int:
    body = {"json": CHAT} if method == "POST" else {}
    answer = await client.request(method, path, **body, **more)  # type: ignore[arg-type]
    return answer.status_code


@pytest.mark.parametrize("read", READS)
async def test_a_named_read_needs_no_key_and_the_others_do(client_of: Ask, read: str) -> None:
    client = await client_of(read_without_key=(read,), sesame=Principal("p"))
    for name, routes in ROUTES.items():
        for method, path in routes:
            assert await status_of(client, method, path) == (200 if name == read else 401), path


async def test_nothing_else_is_opened(client_of: Ask) -> None:
    client = await client_of(read_without_key=READS, sesame=Principal("p"))
    for method, path in CLOSED:
        assert await status_of(client, method, path) == 401, path


async def test_a_wrong_key_is_still_refused(client_of: Ask) -> None:
    client = await client_of(read_without_key=READS, sesame=Principal("p"))
    wrong = {"Authorization": "Bearer wrong"}
    assert await status_of(client, "GET", "/metrics", headers=wrong) == 401


async def test_reads_without_a_key_are_bounded_by_address_and_those_with_one_are_not(
    client_of: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = ThrottlePolicy(num_free=3, interval_s=3600.0)
    monkeypatch.setattr(authentication, "_READS", policy)
    principal = Principal("p", scopes=frozenset({Scope.METRICS, Scope.MODELS}))
    client = await client_of(read_without_key=READS, sesame=principal)
    for path in ("/metrics", "/v1/models", "/v1/metrics"):
        assert await status_of(client, "GET", path) == 200
    refused = await client.get("/metrics")
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert refused.headers["retry-after"] == "1"
    # Callers with a key, probes, and the routers that render prompts.
    key = {"Authorization": "Bearer sesame"}
    assert await status_of(client, "GET", "/metrics", headers=key) == 200
    for path in ("/v1/health/live", "/health", "/v1/version"):
        assert await status_of(client, "GET", path) == 200
    assert await status_of(client, "POST", RENDER) == 200


async def test_a_router_may_read_metrics_20_times_a_second(client_of: Ask) -> None:
    client = await client_of(read_without_key=READS, sesame=Principal("p"))
    assert {await status_of(client, "GET", "/v1/models") for _ in range(60)} == {200}


def test_an_unknown_name_ends_the_start() -> None:
    with pytest.raises(SettingsError, match="'chat' is not one of metrics, models, render"):
        load({"read_without_key": "metrics,chat"})


def test_the_port_has_a_second_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIM_HTTP_API_PORT", "8123")
    assert load().server_port == 8123
    monkeypatch.setenv("NIM_SERVER_PORT", "8123")
    assert load().server_port == 8123
    monkeypatch.setenv("NIM_SERVER_PORT", "8124")
    with pytest.raises(SettingsError, match="NIM_HTTP_API_PORT is '8123'; set one"):
        load()
