"""A real HTTP server around a scripted engine, for real SDKs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from service.run.listener import listen, url_of
from service.run.server import ApiServer
from service.runtime import Runtime
from tests import loopback

Serve = Callable[..., Awaitable[str]]


@pytest.fixture
async def serve(make_runtime: Callable[..., Runtime]) -> AsyncIterator[Serve]:
    """Serves scripts in turn, one for each request; gives the URL."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*scripts: str, **options: Any) -> str:
            runtime = make_runtime(*scripts, **options)
            await runtime.engine.start()
            stack.push_async_callback(runtime.engine.stop)
            listener = stack.enter_context(listen(loopback.ADDRESS, 0))
            await stack.enter_async_context(ApiServer(runtime).listening(listener))
            return url_of(listener)

        yield start
