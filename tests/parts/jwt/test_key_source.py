"""Keys of an identity provider: rotated, cached, and asked for no more often than needed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from auth.base import InvalidCredentials, KeysUnavailable
from parts.jwt.jwk import KeySet, PublicKey, keys_of
from parts.jwt.key_source import (
    MAX_BYTES,
    CachePolicy,
    FetchedKeys,
    discover_keys,
    fetch_keys,
    get_json,
)

POLICY = CachePolicy(max_age_s=300, max_stale_s=3600, cooldown_s=15)


class Provider:
    """Hands out keys, or fails; counts and remembers who asked."""

    def __init__(self, *ids: str) -> None:
        self.ids = ids
        self.is_down = False
        self.kind: str | None = None  # of every key; else its id
        self.num_asked = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> KeySet:
        self.num_asked += 1
        async with asyncio.timeout(60):
            await self.gate.wait()
        if self.is_down:
            raise OSError("down")
        unfit = {"sealed": "its use is 'enc', not 'sig'"}
        return KeySet(
            {id: PublicKey({"kty": self.kind or id}, ("RS256",)) for id in self.ids}, unfit
        )


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def test_keys_are_fetched_once(clock: Clock) -> None:
    provider = Provider("a", "b")
    keys = FetchedKeys(provider, POLICY, clock)
    for _ in range(20):
        assert (await keys.key("a")).jwk == {"kty": "a"}
    assert provider.num_asked == 1


async def test_a_key_that_is_unfit_is_refused_with_the_reason(clock: Clock) -> None:
    keys = FetchedKeys(Provider("a"), POLICY, clock)
    with pytest.raises(InvalidCredentials, match="'sealed' cannot be used: its use is 'enc'"):
        await keys.key("sealed")
    with pytest.raises(InvalidCredentials, match="'b' cannot be used: the provider has no key"):
        await keys.key("b")
    with pytest.raises(InvalidCredentials, match="no kid"):
        await keys.key(None)


async def test_many_that_need_a_key_at_once_make_one_fetch(clock: Clock) -> None:
    provider = Provider("a")
    provider.gate.clear()
    keys = FetchedKeys(provider, POLICY, clock)
    waiting = [asyncio.create_task(keys.key("a")) for _ in range(50)]
    await until(lambda: provider.num_asked > 0)
    provider.gate.set()
    await asyncio.gather(*waiting)
    assert provider.num_asked == 1


async def test_a_rotated_key_is_found_by_its_new_id(clock: Clock) -> None:
    provider = Provider("old")
    keys = FetchedKeys(provider, POLICY, clock)
    await keys.key("old")
    provider.ids = ("new", "old")
    clock.now_s += 16
    assert (await keys.key("new")).jwk == {"kty": "new"}
    assert await keys.key("old")
    provider.ids = ("new",)
    clock.now_s += 301
    await keys.key("new")
    await until(lambda: provider.num_asked == 3)
    await until(lambda: keys._fetching is None)
    with pytest.raises(InvalidCredentials):
        await keys.key("old")


async def test_a_key_replaced_under_its_id_is_found_and_strangers_cause_no_flood(
    clock: Clock,
) -> None:
    provider = Provider("a")
    keys = FetchedKeys(provider, POLICY, clock)
    old = await keys.key("a")
    assert await keys.newer("a", old) is None
    assert provider.num_asked == 1, "too soon to ask again"
    clock.now_s += 16
    for _ in range(50):
        assert await keys.newer("a", old) is None
    assert provider.num_asked == 2
    provider.kind = "another"
    clock.now_s += 16
    newer = await keys.newer("a", old)
    assert newer == await keys.key("a") != old
    assert await keys.newer("a", old) == newer
    assert provider.num_asked == 3


@pytest.mark.parametrize("is_down", [False, True])
async def test_a_flood_of_made_up_ids_is_one_fetch_in_a_cooldown(
    clock: Clock, is_down: bool
) -> None:
    provider = Provider("a")
    keys = FetchedKeys(provider, POLICY, clock)
    await keys.key("a")
    clock.now_s += 16
    provider.is_down = is_down
    for number in range(50):
        with pytest.raises(InvalidCredentials):
            await keys.key(f"made-up-{number}")
    assert provider.num_asked == 2
    assert await keys.key("a")


async def test_old_keys_serve_at_once_while_new_ones_are_fetched(clock: Clock) -> None:
    provider = Provider("a")
    keys = FetchedKeys(provider, POLICY, clock)
    await keys.key("a")
    provider.gate.clear()
    clock.now_s += 301
    async with asyncio.timeout(60):
        assert await keys.key("a")
    await until(lambda: provider.num_asked == 2)
    provider.gate.set()
    await until(lambda: keys._fetching is None)


async def test_a_provider_that_is_down_is_survived_up_to_the_bound(clock: Clock) -> None:
    provider = Provider("a")
    keys = FetchedKeys(provider, POLICY, clock)
    await keys.key("a")
    provider.is_down = True
    for _ in range(11):
        clock.now_s += 320
        assert await keys.key("a")
        await until(lambda: keys._fetching is None)
    clock.now_s += 320
    with pytest.raises(KeysUnavailable):
        await keys.key("a")
    provider.is_down = False
    clock.now_s += 16
    assert await keys.key("a")


async def test_without_any_keys_the_failure_is_ours_and_soon_told(clock: Clock) -> None:
    provider = Provider("a")
    provider.is_down = True
    keys = FetchedKeys(provider, POLICY, clock)
    for _ in range(20):
        with pytest.raises(KeysUnavailable):
            await keys.key("a")
    assert provider.num_asked == 1


async def test_a_provider_that_hangs_holds_no_request_long() -> None:
    provider = Provider("a")
    provider.gate.clear()
    keys = FetchedKeys(provider, CachePolicy(patience_s=0.05))
    with pytest.raises(KeysUnavailable):  # while the provider holds its answer
        await keys.key("a")
    provider.gate.set()
    await until(lambda: keys._fetching is None)
    assert await keys.key("a")


async def test_a_caller_that_leaves_does_not_end_the_fetch(clock: Clock) -> None:
    provider = Provider("a")
    provider.gate.clear()
    keys = FetchedKeys(provider, POLICY, clock)
    leaving, staying = (asyncio.create_task(keys.key("a")) for _ in range(2))
    await until(lambda: provider.num_asked > 0)
    leaving.cancel()
    provider.gate.set()
    assert await staying


class TestFetching:
    """The HTTP part, against a real server on loopback."""

    async def test_discovery_leads_to_the_keys(self, idp: Any, web: Any) -> None:
        def answer(path: str) -> tuple[int, bytes]:
            if path == "/realm/.well-known/openid-configuration":
                document = {"issuer": f"{url}/realm", "jwks_uri": f"{url}/jwks"}
                return 200, json.dumps(document).encode()
            return 200, json.dumps(idp.jwks()).encode()

        url: str = web(answer)
        assert await discover_keys(f"{url}/realm") == keys_of(idp.jwks())

    @pytest.mark.parametrize(
        "change",
        [
            {"issuer": "https://evil.example"},
            {"issuer": None},
            {"jwks_uri": "http://idp.example/jwks"},
            {"jwks_uri": "file:///etc/passwd"},
            {"jwks_uri": None},
        ],
    )
    async def test_a_discovery_document_that_does_not_fit(self, web: Any, change: Any) -> None:
        def answer(_path: str) -> tuple[int, bytes]:
            return 200, json.dumps({"issuer": url, "jwks_uri": f"{url}/jwks"} | change).encode()

        url: str = web(answer)
        with pytest.raises(ValueError, match=r"issuer|https"):
            await discover_keys(url)

    @pytest.mark.parametrize(
        ("status", "body"),
        [
            (500, b"{}"),
            (404, b"{}"),
            (200, b"<html>"),
            (200, b"[]"),
            (200, b'{"keys": []}'),
            (200, b'{"keys": "' + b"x" * MAX_BYTES + b'"}'),
            (200, b"[" * 5000),
        ],
        ids=["500", "404", "html", "list", "no keys", "too large", "too deep"],
    )
    async def test_what_is_no_key_set(self, web: Any, status: int, body: bytes) -> None:
        url = web(lambda _path: (status, body))
        with pytest.raises((OSError, ValueError)):
            await fetch_keys(f"{url}/jwks")

    async def test_redirects_are_not_followed(self, idp: Any, web: Any) -> None:
        target = web(lambda _path: (200, json.dumps(idp.jwks()).encode()))
        url = web(lambda _path: (302, target.encode()))
        with pytest.raises(OSError, match="302"):
            await fetch_keys(url)

    async def test_a_server_that_drips_is_given_up(
        self, web: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("parts.jwt.key_source.TIMEOUT_S", 0.05)
        done = threading.Event()

        def answer(_path: str) -> tuple[int, bytes]:
            done.wait(10)
            return 200, b"{}"

        url = web(answer)
        with pytest.raises(OSError, match=r"did not send a complete response within 0\.05 s"):
            await get_json(url)
        done.set()

    @pytest.mark.parametrize(
        "start", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"]
    )
    async def test_a_server_that_trickles_is_given_up_in_time(
        self, monkeypatch: pytest.MonkeyPatch, start: bytes
    ) -> None:
        """Each byte comes soon after the last, in the headers or in the body."""
        monkeypatch.setattr("parts.jwt.key_source.TIMEOUT_S", 0.3)

        async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            handlers.append(asyncio.current_task())
            writer.write(start)
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.02)
            writer.close()

        handlers: list[Any] = []
        async with await asyncio.start_server(trickle, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with asyncio.timeout(60):
                with pytest.raises(OSError, match="did not send a complete response"):
                    await get_json(f"http://127.0.0.1:{port}/jwks")
                await asyncio.gather(*handlers)

    @pytest.mark.parametrize(
        "url", ["http://idp.example/", "ftp://127.0.0.1/", "//127.0.0.1", "jwks", ""]
    )
    async def test_only_https_or_loopback_is_asked(self, url: str) -> None:
        with pytest.raises(ValueError, match="https"):
            await get_json(url)

    async def test_nobody_there(self) -> None:
        with pytest.raises(OSError, match="cannot be reached"):
            await get_json("http://127.0.0.1:9")
