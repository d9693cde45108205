"""Who does not know the secret, or changes a message, gets and gives nothing."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar

import psutil
import pytest

from engines.base import EngineRequest, SamplingParams
from engines.handover.ask import Ask, Fingerprint
from engines.handover.channel import (
    Channel,
    Disagreement,
    HandoverError,
    Kind,
    as_client,
    as_server,
)
from engines.handover.fetch import Fetch
from engines.handover.server import HandoverServer, Piece
from engines.spec import KvHandover
from tests.engines.handover.pairs import SECRET, free_endpoint

Ends = tuple[socket.socket, socket.socket]
REQUEST = EngineRequest("asked", (1, 2, 3), SamplingParams(5))


@pytest.fixture
def ends() -> Iterator[Ends]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def channels(ends: Ends, theirs: str = SECRET) -> tuple[Channel, Channel]:
    """The client's and the server's."""
    with ThreadPoolExecutor(1) as threads:
        serving = threads.submit(as_server, ends[1], SECRET)
        try:
            client = as_client(ends[0], theirs, within_s=1.0)
        finally:
            if theirs != SECRET:
                with pytest.raises(Disagreement, match="another secret"):
                    serving.result()
        return client, serving.result()


def test_messages_arrive_as_they_were(ends: Ends) -> None:
    client, server = channels(ends)
    for number in range(3):
        client.send(Kind.ASK, {"number": number, "salt": "\udcff"}, b"x" * number, within_s=1.0)
        message = server.receive(10, within_s=1.0)
        assert (message.kind, message.fields["number"]) == (Kind.ASK, number)
        assert message.fields["salt"] == "\udcff"
        assert message.payload == b"x" * number
        server.send(Kind.END, within_s=1.0)
        assert client.receive(0, within_s=1.0).kind is Kind.END


def test_another_secret_is_refused_by_both(ends: Ends) -> None:
    near, far = ends
    with ThreadPoolExecutor(1) as threads:
        serving = threads.submit(as_server, far, SECRET)
        serving.add_done_callback(lambda _: far.shutdown(socket.SHUT_RDWR))
        with pytest.raises(Disagreement, match="refused the secret"):
            as_client(near, "another one, as long", within_s=5.0)
        with pytest.raises(Disagreement, match="another secret"):
            serving.result()


def test_a_server_that_does_not_know_the_secret_is_sent_no_prompt(ends: Ends) -> None:
    near, far = ends
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(as_client, near, SECRET, within_s=5.0)
        far.sendall(b"harmonium kv 2\n" + bytes(32))
        assert len(far.recv(1024, socket.MSG_WAITALL | socket.MSG_PEEK)) <= 64
        far.sendall(bytes(32))
        with pytest.raises(Disagreement, match="another secret"):
            asking.result()


@pytest.mark.parametrize("place", [0, 20, -20, -1])  # of the head, the fields, the payload, its tag
def test_a_changed_byte_is_noticed(ends: Ends, place: int) -> None:
    client, server = channels(ends)
    changed, at_server = socket.socketpair()
    with changed, at_server:
        client.send(Kind.BLOCKS, {"keys": []}, b"content", within_s=1.0)
        data = bytearray(ends[1].recv(1024))
        data[place] ^= 1
        changed.sendall(data)
        server._connection = at_server
        with pytest.raises(HandoverError, match="changed in transit"):
            server.receive(100, within_s=1.0)


def test_nothing_of_a_message_can_be_read_on_its_way(ends: Ends) -> None:
    client, _ = channels(ends)
    sent = []
    for _ in range(2):
        client.send(Kind.ASK, {"salt": "a secret salt"}, b"a secret prompt", within_s=1.0)
        sent.append(ends[1].recv(1024))
    assert b"secret" not in sent[0]
    assert not set(_parts(sent[0])) & set(_parts(sent[1])), "the same twice looks the same"


def _parts(data: bytes) -> list[bytes]:
    """Behind the head: eight bytes at each place."""
    return [data[at : at + 8] for at in range(13, len(data) - 7)]


def test_a_message_is_taken_once(ends: Ends) -> None:
    """Also with its right authentication."""
    client, server = channels(ends)
    client.send(Kind.BLOCKS, {"keys": []}, within_s=1.0)
    data = ends[1].recv(1024, socket.MSG_PEEK)
    server.receive(100, within_s=1.0)
    ends[0].sendall(data)
    with pytest.raises(HandoverError, match="changed in transit"):
        server.receive(100, within_s=1.0)


def test_a_message_may_not_be_larger_than_is_asked_for(ends: Ends) -> None:
    client, server = channels(ends)
    client.send(Kind.BLOCKS, None, bytes(101), within_s=1.0)
    with pytest.raises(HandoverError, match="101 bytes is too large"):
        server.receive(100, within_s=1.0)


def test_silence_and_a_loss_end_the_wait(ends: Ends) -> None:
    client, _ = channels(ends)
    with pytest.raises(HandoverError, match="silent"):
        client.receive(100, within_s=0.05)
    ends[1].close()
    with pytest.raises(HandoverError, match="closed the connection"):
        client.receive(100, within_s=5.0)


class Waiting:
    """An engine whose prompts take for ever, or give what they are told to."""

    fingerprint: ClassVar[Fingerprint] = {"all": "the same"}
    most_bytes = 1 << 20
    is_cached = False

    def __init__(self, pieces: Callable[[], Iterator[Piece]] | None = None) -> None:
        self._pieces = pieces
        self.num_asked = 0

    @contextmanager
    def given(self, ask: Ask) -> Iterator[Waiting]:
        yield self

    async def compute(self) -> None:
        self.num_asked += 1
        await asyncio.Event().wait()

    def note_computed(self, computing: Future[None]) -> None:
        assert computing.cancelled()

    def pieces(self, every_s: float) -> Iterator[Piece | None]:
        if self._pieces is not None:
            return self._pieces()
        return iter(lambda: time.sleep(every_s), 0)


@pytest.fixture
def serve() -> Iterator[Callable[[Any], str]]:
    """Serve a source; the address."""
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()
    servers = []

    def start(source: Any) -> str:
        endpoint = free_endpoint()
        server = HandoverServer(KvHandover("prefill", SECRET, endpoint))
        server.bind()
        server.serve(source, loop)
        servers.append(server)
        return endpoint

    yield start
    for server in servers:
        server.stop()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), loop).result()  # what was cancelled ends
    loop.call_soon_threadsafe(loop.stop)
    running.join()
    loop.close()


def fetch(endpoint: str, block_bytes: int = 4, timeout_s: float = 5.0) -> list[Any]:
    taken: list[Any] = []
    ask = Ask(REQUEST, Waiting.fingerprint)
    Fetch(SECRET, timeout_s).run(endpoint, ask, block_bytes, lambda *each: taken.append(each))
    return taken


def test_whoever_says_anything_else_is_let_go_and_others_are_served(
    serve: Callable[[Any], str],
) -> None:
    endpoint = serve(Waiting(lambda: iter([([b"k1", b"k2"], memoryview(b"12345678"))])))
    port = int(endpoint.rpartition(":")[2])
    for words in (b"GET / HTTP/1.1\r\n\r\n" * 10, bytes(64), b"\xff" * 5000):
        with socket.create_connection(("127.0.0.1", port)) as other:
            other.sendall(words)
            other.settimeout(5.0)
            left = b""
            try:
                while data := other.recv(4096):
                    left += data
            except ConnectionResetError:
                pass
            assert len(left) <= 47, "more than the server's first words"
        assert fetch(endpoint) == [([b"k1", b"k2"], bytearray(b"12345678"))]


def test_it_listens_on_the_named_address_alone(serve: Callable[[Any], str]) -> None:
    endpoint = serve(Waiting())
    port = int(endpoint.rpartition(":")[2])
    found = psutil.Process().net_connections(kind="tcp")
    listening = [each.laddr for each in found if each.status == psutil.CONN_LISTEN]
    assert [each.ip for each in listening if each.port == port] == ["127.0.0.1"]


def test_a_prompt_that_takes_too_long_is_given_up(serve: Callable[[Any], str]) -> None:
    """By the time it may take, though the peer lives and says so."""
    source = Waiting()
    endpoint = serve(source)
    begun_s = time.monotonic()
    with pytest.raises(HandoverError, match="silent for too long"):
        fetch(endpoint, timeout_s=1.2)
    assert 1.2 <= time.monotonic() - begun_s < 10.0
    assert source.num_asked == 1


@pytest.mark.parametrize(
    ("keys", "content"), [([b"k1"], b"12345678"), ([], b"1234"), ([b"k1", b"k2"], b"")]
)
def test_blocks_of_another_size_are_not_taken(
    serve: Callable[[Any], str], keys: list[bytes], content: bytes
) -> None:
    endpoint = serve(Waiting(lambda: iter([(keys, memoryview(content))])))
    with pytest.raises(HandoverError, match="bytes"):
        fetch(endpoint)


def test_one_that_is_cancelled_ends_at_once(serve: Callable[[Any], str]) -> None:
    source = Waiting()
    endpoint = serve(source)
    one = Fetch(SECRET, 60.0)
    ask = Ask(REQUEST, Waiting.fingerprint)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(one.run, endpoint, ask, 4, lambda *_: None)
        while not source.num_asked:
            time.sleep(0.001)
        one.cancel()
        with pytest.raises(HandoverError):
            running.result(5.0)
    with pytest.raises(HandoverError, match="ended"):
        one.run(endpoint, ask, 4, lambda *_: None)
