"""What strangers and slow clients cost: nothing that others need."""

from __future__ import annotations

import logging
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial

import psutil
import pytest
import zmq

from parts.kv_events import zmtp
from parts.kv_events.events import Stored
from parts.kv_events.publisher import KvEventPublisher
from tests import loopback
from tests.parts.kv_events.connecting import (
    Publish,
    Reader,
    events_of,
    until_subscribed,
)

WITHIN_S = 20.0
HISTORY_BYTES = 60 << 20


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def wait_until(is_so: Callable[[], object]) -> None:
    until_s = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def connected(stack: ExitStack, endpoint: str | None, sends: bytes = b"") -> socket.socket:
    """A client that sends this, and reads only what a test reads."""
    assert endpoint is not None
    client = socket.socket(loopback.FAMILY)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(WITHIN_S)
    client.connect((loopback.ADDRESS, int(endpoint.rpartition(":")[2])))
    client.sendall(sends)
    return stack.enter_context(client)


def received_until(client: socket.socket, is_all: Callable[[bytearray], bool]) -> bytearray:
    """What the server sends; it may not close the connection before that."""
    received = bytearray()
    while not is_all(received):
        part = client.recv(1 << 20)
        assert part, "the server closed the connection"
        received += part
    return received


def opening(socket_type: bytes, *frames: bytes) -> bytes:
    """The words of a client up to its first message."""
    sent = [zmtp.frame(each, is_last=False) for each in frames[:-1]]
    return zmtp.GREETING + zmtp.ready(socket_type) + b"".join(sent) + zmtp.frame(frames[-1])


REPLAY = opening(b"DEALER", b"", bytes(8))
SUBSCRIBE = opening(b"SUB", b"\1kv@")


def is_closed(client: socket.socket) -> bool:
    """Whether the server has closed it; reads all that came."""
    with suppress(ConnectionResetError):
        client.setblocking(False)
        try:
            while client.recv(1 << 20):
                pass
        except BlockingIOError:
            return False
    return True


def has_begun(client: socket.socket) -> bool:
    """Whether it is sent more than a handshake; reads nothing."""
    client.setblocking(False)
    with suppress(OSError):
        return len(client.recv(4096, socket.MSG_PEEK)) > 200
    return False


def filled(publish: Publish) -> KvEventPublisher:
    """A publisher with a full history, of batches like those of long prompts."""
    sender = publish(max_waiting_blocks=1 << 20)
    tokens = [70_000] * 10_000  # 50 kB
    for number in range(HISTORY_BYTES // 50_000):
        sender.publish([Stored([number.to_bytes(16, "big")], None, tokens, 16, None, None)])
    wait_until(lambda: not sender._waiting)
    return sender


def test_100_replaying_clients_that_never_read_cost_no_memory(
    reader: Reader, publisher: Publish, stack: ExitStack
) -> None:
    sender = filled(publisher)
    num_kept = len(reader.replay(sender.replay_endpoint))
    assert num_kept > 1000
    process = psutil.Process()
    before = most = process.memory_info().rss
    clients = [connected(stack, sender.replay_endpoint, REPLAY) for _ in range(100)]

    def num_served() -> int:
        nonlocal most
        most = max(most, process.memory_info().rss)
        return sum(map(has_begun, clients))

    wait_until(lambda: num_served() > 50)
    # They make room for one that reads. What it asked for was lost if it came too early.
    reader.timeout_ms = 500
    replayed: list[int] = []

    def is_replayed() -> bool:
        num_served()
        with suppress(zmq.Again):
            replayed.append(len(reader.replay(sender.replay_endpoint)))
        return bool(replayed)

    wait_until(is_replayed)
    assert replayed == [num_kept]
    assert most - before < 50e6
    stack.close()
    wait_until(lambda: not len(sender._ports[1]))
    assert process.memory_info().rss - before < 20e6


def test_strangers_close_no_subscriber_and_each_other_in_turn(
    reader: Reader, publisher: Publish, stack: ExitStack
) -> None:
    sender = publisher()
    subscriber = reader.connect(zmq.SUB, sender.endpoint)
    last = until_subscribed(sender, subscriber)
    strangers = [connected(stack, sender.endpoint) for _ in range(100)]
    idle = [connected(stack, sender.endpoint, opening(b"SUB", b"\1other")) for _ in range(100)]
    assert is_closed(strangers[0])
    wait_until(lambda: all(map(is_closed, strangers + idle[:36])))
    late = reader.connect(zmq.SUB, sender.endpoint)
    until_subscribed(sender, late)
    while (number := int.from_bytes(subscriber.recv_multipart()[1], "big")) < last + 1:
        pass
    assert number == last + 1, "it was connected all the time"


def test_one_that_never_ends_its_handshake_is_let_go(
    publisher: Publish, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parts.kv_events.port.HANDSHAKE_S", 0.2)
    sender = publisher()
    words = [b"", zmtp.GREETING[:9], zmtp.GREETING, SUBSCRIBE[:70]]
    strangers = [connected(stack, sender.endpoint, each) for each in words]
    known = connected(stack, sender.endpoint, SUBSCRIBE)
    wait_until(lambda: all(map(is_closed, strangers)))
    assert not is_closed(known)


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(64),
        b"\xff" + bytes(8) + b"\x7f\x01",  # ZMTP 2
        zmtp.GREETING[:12] + b"CURVE".ljust(52, b"\0"),
        zmtp.GREETING + zmtp.frame(b"\1kv@"),
        zmtp.GREETING + zmtp.ready(b"PULL"),
        SUBSCRIBE + b"\x02" + (1 << 60).to_bytes(8, "big"),
        SUBSCRIBE + b"\xff\x00",
        SUBSCRIBE + zmtp.frame(b"", is_last=False) * 5,
        SUBSCRIBE + b"".join(zmtp.frame(b"\1" + bytes([n])) for n in range(65)),
        SUBSCRIBE + zmtp.frame(b"?") * 1001,
    ],
)
def test_what_nobody_sends_who_means_well_ends_the_connection(
    publisher: Publish, stack: ExitStack, words: bytes
) -> None:
    client = connected(stack, publisher().endpoint, words)
    wait_until(lambda: is_closed(client))


def test_requests_that_wait_are_bounded(publisher: Publish, stack: ExitStack) -> None:
    sender = filled(publisher)
    request = zmtp.frame(b"", is_last=False) + zmtp.frame(bytes(8))
    client = connected(stack, sender.replay_endpoint, REPLAY + request * 200)
    wait_until(lambda: is_closed(client))


def test_strangers_fill_no_log(
    publisher: Publish, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    sender = publisher()
    for _ in range(200):
        client = connected(stack, sender.endpoint, bytes(64))
        wait_until(partial(is_closed, client))
    told = [line for line in caplog.messages if "does not speak ZMTP" in line]
    assert 20 <= len(told) < 40
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == len(told)


def test_a_subscriber_that_does_not_read_is_let_go_and_others_get_everything(
    reader: Reader,
    publisher: Publish,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("parts.kv_events.port.PATIENCE_S", 1.5)
    sender = publisher(max_waiting_blocks=1 << 20)
    subscriber = reader.connect(zmq.SUB, sender.endpoint)
    last = until_subscribed(sender, subscriber)
    connected(stack, sender.endpoint, SUBSCRIBE)
    wait_until(lambda: len(sender._ports[0]) == 2)
    tokens = [70_000] * 10_000
    for _ in range(100):
        sender.publish([Stored([bytes(16)], None, tokens, 16, None, None)])
    while len(events_of((message := subscriber.recv_multipart())[2])[0][3]) < 10_000:
        last = int.from_bytes(message[1], "big")
    numbers = [int.from_bytes(message[1], "big")]
    numbers += [int.from_bytes(subscriber.recv_multipart()[1], "big") for _ in range(99)]
    assert numbers == [*range(last + 1, last + 101)]
    wait_until(lambda: len(sender._ports[0]) == 1)
    assert f"at {loopback.ADDRESS} was disconnected: it did not read for 1.5 s" in caplog.text


def test_a_subscriber_that_is_too_slow_misses_the_oldest_and_sees_it_by_the_numbers(
    publisher: Publish, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parts.kv_events.history.KEPT_BYTES", 1 << 20)
    sender = publisher(max_waiting_blocks=1 << 20)
    client = connected(stack, sender.endpoint, SUBSCRIBE)
    wait_until(lambda: any(each.has_asked() for each in sender._ports[0]._clients))
    tokens = [70_000] * 10_000
    for _ in range(200):
        sender.publish([Stored([bytes(16)], None, tokens, 16, None, None)])
    wait_until(lambda: sender._history.next == 200 and not sender._waiting)
    last = (199).to_bytes(8, "big")
    received = received_until(client, lambda received: last in received[-60_000:])
    topic = zmtp.frame(b"kv@10.0.0.7:8000@nano", is_last=False)
    parts = bytes(received).split(topic)[1:]
    numbers = [int.from_bytes(part[2:10], "big") for part in parts]
    assert numbers == sorted({*numbers})
    assert numbers[-1] == 199
    assert len(numbers) < 150, "all batches were held for it"


def test_a_reader_takes_its_words_in_any_pieces_and_raises_nothing_else() -> None:
    whole = zmtp.Reader()
    events = [*whole.feed(SUBSCRIBE + zmtp.frame(b"a", is_last=False) + zmtp.frame(b"b" * 300))]
    assert events == [zmtp.PeerReady(b"SUB"), (b"\1kv@",), (b"a", b"b" * 300)]
    words, slow = (
        SUBSCRIBE + zmtp.frame(b"a", is_last=False) + zmtp.frame(b"b" * 300),
        zmtp.Reader(),
    )
    assert [event for byte in words for event in slow.feed(bytes([byte]))] == events
    chance = random.Random(1)
    for _ in range(3000):
        changed = bytearray(words)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        with suppress(zmtp.ProtocolError):
            [*zmtp.Reader().feed(bytes(changed))]


def test_a_ping_is_answered(publisher: Publish, stack: ExitStack) -> None:
    """Routers may watch their connections by heartbeats."""
    ping = b"\x04\x0b\x04PING\x00\x64mine"
    client = connected(stack, publisher().endpoint, SUBSCRIBE + ping)
    answer = b"\x04\x09\x04PONGmine"
    received = received_until(client, lambda received: answer in received)
    assert received.endswith(answer)
