"""Both families of addresses on one port, and who is seen behind it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import shlex
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest

from auth.address import is_loopback, plain_address
from service.cli.serve import serve
from service.http.probe import is_ready
from service.run.listener import ListenError, listen, url_of
from service.run.server import ApiServer
from service.runtime import Runtime
from tests import loopback


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv4 = pytest.mark.skipif(not loopback.HAS_IPV4, reason="the loopback has no IPv4")
needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6 loopback")


@contextlib.asynccontextmanager
async def _served(runtime: Runtime, listener: socket.socket) -> AsyncIterator[None]:
    await runtime.engine.start()
    async with ApiServer(runtime).listening(listener):
        yield
    await runtime.engine.stop()


@needs_ipv6
@needs_ipv4
async def test_every_address_is_of_both_families(
    make_runtime: Callable[..., Runtime], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "harmonium.access")
    with listen("::", 0) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener) == f"http://127.0.0.1:{port}"
        async with _served(make_runtime("<|return|>"), listener):
            for host in ("127.0.0.1", "[::1]"):
                async with httpx2.AsyncClient(base_url=f"http://{host}:{port}") as client:
                    assert (await client.get("/v1/models")).status_code == 200
            assert await asyncio.to_thread(is_ready, port, "disabled", "::")
    lines: list[Any] = [r for r in caplog.records if r.name == "harmonium.access"]
    assert [line.access["client"] for line in lines[:2]] == ["127.0.0.1", "::1"]


def test_a_port_in_use_is_told_with_a_command_that_works() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"Port {port} of 127") as raised:
            listen("127.0.0.1", port)
    program, name, *typed = shlex.split(str(raised.value).split("`")[1])
    assert (program, name) == ("harmonium", "serve")
    port = serve.make_context(name, typed).params["server_port"]
    listen("127.0.0.1", int(port)).close()


@needs_ipv6
def test_the_default_is_ipv6_where_the_loopback_has_no_ipv4(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bind = socket.socket.bind

    class NoIpv4(socket.socket):
        def bind(self, address: Any) -> None:
            if self.family == socket.AF_INET:
                raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
            bind(self, address)

    monkeypatch.setattr(socket, "socket", NoIpv4)
    for host in ("127.0.0.1", "::"):
        with listen(host, 0) as listener:
            assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"


@needs_ipv6
async def test_an_ipv6_address_alone_is_served_and_probed(
    make_runtime: Callable[..., Runtime],
) -> None:
    with listen("::1", 0) as listener:
        port = listener.getsockname()[1]
        async with _served(make_runtime("<|return|>"), listener):
            async with httpx2.AsyncClient(base_url=url_of(listener)) as client:
                assert (await client.get("/v1/models")).status_code == 200
            assert await asyncio.to_thread(is_ready, port, "disabled", "::1")
            assert not await asyncio.to_thread(is_ready, port, "disabled", "127.0.0.1")


@needs_ipv4
def test_a_kernel_without_ipv6_has_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    open_socket = socket.socket

    class NoIpv6(open_socket):  # type: ignore[misc,valid-type]
        def __init__(self, family: int = socket.AF_INET, *args: Any, **options: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *args, **options)

    monkeypatch.setattr(socket, "socket", NoIpv6)
    with listen("::", 0) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"
        assert url_of(listener).startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("seen", "plain", "is_ours"),
    [
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("::FFFF:192.0.2.1", "192.0.2.1", False),
        ("::1", "::1", True),
        ("2001:db8::ffff:1", "2001:db8::ffff:1", False),
        ("10.0.0.7", "10.0.0.7", False),
    ],
)
def test_a_mapped_address_is_the_plain_one(seen: str, plain: str, is_ours: bool) -> None:
    assert plain_address(seen) == plain
    assert is_loopback(seen) == is_ours
