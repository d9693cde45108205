"""A session with one MCP server, over streamable HTTP, or over SSE where the URL says so.

Streamable HTTP speaks the newest revision of the protocol, and the older ones with servers that
know no other; SSE is of the older ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2
from mcp import Client, types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from service.work import JsonScan, OverBudget

_CLOSE_TIMEOUT_S = 1.0
_RESUMPTION_S = 3.0  # longer than the library's two tries to take up an answer that broke off
_TLS = ssl.create_default_context()  # once: it reads the system's certificates
_MAX_BODY_BYTES = 16 << 20  # of one HTTP answer: what comes after it is an error
_MAX_OBJECTS = 4096  # in one HTTP answer: the library validates each in the event loop
_PLAIN = "identity"  # what is compressed may unfold to a thousand times what was read

# The library logs every failure with a traceback; a failed call says itself what happened.
logging.getLogger("mcp.client").setLevel(logging.CRITICAL)


MakeClient = Callable[..., httpx2.AsyncClient]


class Connection:
    """A session with one MCP server, opened by the first call.

    The library's contexts must be left by the task that entered them, which a request's task,
    cancelled and closed from outside, cannot promise: they live in a task of their own.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """`headers`: of every request to the server, beside MCP's own."""
        self._url = url
        self._watch = _Watch()
        self._client = _client_with(headers, self._watch)
        self._closing = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    @property
    def revision(self) -> str:
        """The protocol's, once a call was answered."""
        return self._ready.result().protocol_version

    async def call(
        self, tool: str, arguments: Mapping[str, Any], client_id: str
    ) -> types.CallToolResult:
        """Call a tool; raises the error that kept the server from answering."""
        if self._task is None:
            self._task = asyncio.create_task(self._hold(), name="mcp connection")
        self._watch.broken.clear()
        calling = asyncio.create_task(self._call(tool, arguments, client_id))
        losing = asyncio.create_task(self._lose())
        try:  # a connection that breaks does not always end the calls that wait for it
            await asyncio.wait((calling, losing, self._task), return_when=asyncio.FIRST_COMPLETED)
            if not calling.done():
                raise ConnectionError(self._watch.refusal or "the connection was lost")
            return calling.result()
        finally:
            calling.cancel()
            losing.cancel()
            await asyncio.wait((calling, losing))

    async def _call(
        self, tool: str, arguments: Mapping[str, Any], client_id: str
    ) -> types.CallToolResult:
        client = await asyncio.shield(self._ready)
        self._watch.broken.clear()
        meta: Any = {"client_id": client_id}  # the protocol allows names of our own
        return await client.call_tool(tool, dict(arguments), meta=meta)

    async def _lose(self) -> None:
        """Return once an answer was refused, or broke off and was not taken up again: the library
        says nothing."""
        await self._watch.broken.wait()
        if not self._watch.refusal:
            await asyncio.sleep(_RESUMPTION_S)

    async def close(self) -> None:
        """End the session; a server that does not take its leave is not waited for."""
        self._closing.set()
        if self._task is not None:
            if self._ready.done():
                await asyncio.wait((self._task,), timeout=_CLOSE_TIMEOUT_S)
            self._task.cancel()
            await asyncio.wait((self._task,))
        if not self._ready.cancel() and not self._ready.cancelled():
            self._ready.exception()  # has been reported, or is no longer awaited

    async def _hold(self) -> None:
        try:
            async with _open(self._url, self._client) as client:
                self._ready.set_result(client)
                await self._closing.wait()
        except Exception as error:
            if not self._ready.done():
                self._ready.set_exception(_first(error))


def _first(error: BaseException) -> BaseException:
    """The original error: the library's task groups wrap it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextlib.asynccontextmanager
async def _open(url: str, make_client: MakeClient) -> AsyncIterator[Client]:
    if urlsplit(url).path.rstrip("/").endswith("/sse"):
        streams = sse_client(url, httpx_client_factory=make_client)
        async with Client(streams, mode="legacy", cache=None) as client:
            yield client
    else:
        async with make_client() as http:
            streams = streamable_http_client(url, http_client=http, max_sse_event_size=None)
            async with Client(streams, cache=None) as client:
                yield client


class _Watch:
    """What the transport has seen of one connection's answers."""

    def __init__(self) -> None:
        self.broken = asyncio.Event()  # the answer to a call ended before the call was answered
        self.refusal = ""  # why an answer was not read

    def refuse(self, reason: str) -> httpx2.ReadError:
        """Note that an answer is not read; gives the error to raise."""
        self.refusal = reason
        self.broken.set()
        return httpx2.ReadError(reason)


def _client_with(ours: Mapping[str, str], watch: _Watch) -> MakeClient:
    """Makes clients without timeouts of their own: each call has one."""

    def client(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            headers={"accept-encoding": _PLAIN, **ours, **(headers or {})},
            timeout=None,
            auth=auth,
            transport=_WatchedTransport(watch),
        )

    return client


class _WatchedTransport(httpx2.AsyncHTTPTransport):
    def __init__(self, watch: _Watch) -> None:
        super().__init__(verify=_TLS)
        self._watch = watch

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if (coding := response.headers.get("content-encoding", _PLAIN)) != _PLAIN:
            await response.aclose()
            raise self._watch.refuse(f"the answer is compressed ({coding[:20]!r})")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        is_call = request.method == "POST"
        is_events = "text/event-stream" in response.headers.get("content-type", "")
        response.stream = _WatchedStream(response.stream, self._watch, is_call, is_events)
        return response


class _WatchedStream(httpx2.AsyncByteStream):
    """The bytes of one answer: no more than may be, and told when those of a call break off.

    The reader closes the stream after the event it waited for; so one of events that ends by
    itself ended too early.
    """

    def __init__(
        self, stream: httpx2.AsyncByteStream, watch: _Watch, is_call: bool, is_events: bool
    ) -> None:
        self._stream = stream
        self._watch = watch
        self._is_call = is_call
        self._is_events = is_events
        self._scan = JsonScan(_MAX_OBJECTS)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        try:
            async for chunk in self._stream:
                num_bytes += len(chunk)
                if num_bytes > _MAX_BODY_BYTES:
                    raise self._watch.refuse(f"the answer is larger than {_MAX_BODY_BYTES} bytes")
                await self._check(chunk)
                yield chunk
        except httpx2.TransportError:
            if self._is_call:
                self._watch.broken.set()
            raise
        if self._is_call and self._is_events:
            self._watch.broken.set()

    async def _check(self, chunk: bytes) -> None:
        try:
            await self._scan.feed(chunk)
        except OverBudget as error:
            reason = f"the answer has {error}, above the limit"
            raise self._watch.refuse(reason) from None

    async def aclose(self) -> None:
        await self._stream.aclose()
