"""Who does not know the secret, or changes a message, gets and gives nothing."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psutil
import pytest

from parts.dynamo.handover.ask import PrefillAsk
from parts.dynamo.handover.channel import (
    Channel,
    ChannelMessage,
    Disagreement,
    HandoverError,
    MessageKind,
    as_client,
    as_server,
)
from parts.dynamo.handover.fetch import Fetch
from parts.dynamo.handover.idle_channels import IdleChannels
from tests.parts.dynamo.handover.pairs import SECRET
from tests.parts.dynamo.handover.serving import (
    REQUEST,
    TWO_BLOCKS,
    Kept,
    Serve,
    Waiting,
    fetch,
    gives_two_blocks,
)

Ends = tuple[socket.socket, socket.socket]


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
        client.send(
            MessageKind.ASK, {"number": number, "salt": "\udcff"}, b"x" * number, within_s=1.0
        )
        message = server.receive(10, within_s=1.0)
        assert (message.kind, message.fields["number"]) == (MessageKind.ASK, number)
        assert message.fields["salt"] == "\udcff"
        assert message.payload == b"x" * number
        server.send(MessageKind.END, within_s=1.0)
        assert client.receive(0, within_s=1.0).kind is MessageKind.END


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
        far.sendall(b"harmonium kv 3\n" + bytes(32))
        assert len(far.recv(1024, socket.MSG_WAITALL | socket.MSG_PEEK)) <= 64
        far.sendall(bytes(32))
        with pytest.raises(Disagreement, match="another secret"):
            asking.result()


@pytest.mark.parametrize("place", [0, 20, -20, -1])  # of the head, the fields, the payload, its tag
def test_a_changed_byte_is_noticed(ends: Ends, place: int) -> None:
    client, server = channels(ends)
    changed, at_server = socket.socketpair()
    with changed, at_server:
        client.send(MessageKind.BLOCKS, {"keys": []}, b"content", within_s=1.0)
        data = bytearray(ends[1].recv(1024))
        data[place] ^= 1
        changed.sendall(data)
        server.connection = at_server
        with pytest.raises(HandoverError, match="changed in transit"):
            server.receive(100, within_s=1.0)


def test_nothing_of_a_message_can_be_read_on_its_way(ends: Ends) -> None:
    client, _ = channels(ends)
    sent = []
    for _ in range(2):
        client.send(MessageKind.ASK, {"salt": "a secret salt"}, b"a secret prompt", within_s=1.0)
        sent.append(ends[1].recv(1024))
    assert b"secret" not in sent[0]
    assert not set(_parts(sent[0])) & set(_parts(sent[1])), "the same twice looks the same"


def _parts(data: bytes) -> list[bytes]:
    """Behind the head: eight bytes at each place."""
    return [data[at : at + 8] for at in range(13, len(data) - 7)]


def test_a_message_is_taken_once(ends: Ends) -> None:
    """Also with its right authentication."""
    client, server = channels(ends)
    client.send(MessageKind.BLOCKS, {"keys": []}, within_s=1.0)
    data = ends[1].recv(1024, socket.MSG_PEEK)
    server.receive(100, within_s=1.0)
    ends[0].sendall(data)
    with pytest.raises(HandoverError, match="changed in transit"):
        server.receive(100, within_s=1.0)


def test_a_message_of_another_connection_is_refused(ends: Ends) -> None:
    """Each connection has its own keys."""
    client, _ = channels(ends)
    client.send(MessageKind.BLOCKS, {"keys": []}, b"content", within_s=1.0)
    data = ends[1].recv(1024)
    near, far = socket.socketpair()
    with near, far:
        _, server = channels((near, far))
        near.sendall(data)
        with pytest.raises(HandoverError, match="changed in transit"):
            server.receive(100, within_s=1.0)


FRAME = 512 << 10
SEALED = FRAME + 16


def _sent(ends: Ends, client: Channel, payload: bytes) -> bytearray:
    """What a message is on its way: its fields, then the frames of its payload."""
    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(client.send, MessageKind.BLOCKS, None, payload, within_s=5.0)
        num = 13 + 2 + 16 + len(payload) + 16 * -(-len(payload) // FRAME)
        ends[1].settimeout(None)  # else it gives what there is
        data = bytearray(ends[1].recv(num, socket.MSG_WAITALL))
        sending.result()
    return data


def _received(server: Channel, data: bytearray) -> bytes:
    near, far = socket.socketpair()
    with near, far, ThreadPoolExecutor(1) as threads:
        server.connection = far
        sending = threads.submit(near.sendall, data)
        try:
            return bytes(server.receive(4 * FRAME, within_s=5.0).payload)
        finally:
            far.close()
            with suppress(OSError):
                sending.result()


def test_a_large_payload_arrives_as_it_was(ends: Ends) -> None:
    client, server = channels(ends)
    for payload in (bytes(FRAME), random.Random(0).randbytes(2 * FRAME + 5)):
        assert _received(server, _sent(ends, client, payload)) == payload


@pytest.mark.parametrize("fault", ["swapped", "repeated", "changed in the last"])
def test_frames_that_are_not_as_they_were_sent_are_refused(ends: Ends, fault: str) -> None:
    client, server = channels(ends)
    data = _sent(ends, client, random.Random(0).randbytes(3 * FRAME))
    first = len(data) - 3 * SEALED
    one, two, three = (data[first + i * SEALED :][:SEALED] for i in range(3))
    three[5] ^= fault == "changed in the last"
    frames = {"swapped": [two, one, three], "repeated": [one, one, three]}
    changed = data[:first] + b"".join(frames.get(fault, [one, two, three]))
    with pytest.raises(HandoverError, match="changed in transit"):
        _received(server, changed)


def test_a_message_may_not_be_larger_than_is_asked_for(ends: Ends) -> None:
    client, server = channels(ends)
    client.send(MessageKind.BLOCKS, None, bytes(101), within_s=1.0)
    with pytest.raises(HandoverError, match="101 bytes is too large"):
        server.receive(100, within_s=1.0)


@pytest.mark.parametrize("depth", [6, 900, 100_000])
@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_a_message_that_is_nested_deep_is_refused(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, brackets: str, depth: int
) -> None:
    client, server = channels(ends)
    opening, closing = {"[]": ("[", "]"), "{}": ('{"a":', "}")}[brackets]
    text = opening * depth + "1" + closing * depth
    monkeypatch.setattr(
        "parts.dynamo.handover.channel.json.dumps", lambda _: f'{{"reason": {text}}}'
    )
    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(client.send, MessageKind.REFUSAL, {}, within_s=5.0)
        with pytest.raises(HandoverError, match="cannot be read"):
            server.receive(100, within_s=5.0)
        sending.result()


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprint": {"all": ["the same"]}},
        {"fingerprint": {"all": "x" * 100_000}},
        {"fingerprint": ["all"]},
        {"num_known": -1},
        {"priority": 10**30},
    ],
)
def test_a_question_with_other_values_is_refused_in_one_line(changes: dict[str, Any]) -> None:
    fields = PrefillAsk(REQUEST, Waiting.fingerprint).fields | changes
    with pytest.raises(HandoverError, match="the question cannot be read") as caught:
        PrefillAsk.read(ChannelMessage(MessageKind.ASK, fields, memoryview(bytes(8))))
    assert len(str(caught.value)) < 300


def test_silence_and_a_loss_end_the_wait(ends: Ends) -> None:
    client, _ = channels(ends)
    with pytest.raises(HandoverError, match="silent"):
        client.receive(100, within_s=0.05)
    ends[1].close()
    with pytest.raises(HandoverError, match="closed the connection"):
        client.receive(100, within_s=5.0)


def test_whoever_says_anything_else_is_let_go_and_others_are_served(
    serve: Serve,
) -> None:
    endpoint = serve(gives_two_blocks())
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
        assert fetch(endpoint) == TWO_BLOCKS


def test_it_listens_on_the_named_address_alone(serve: Serve) -> None:
    endpoint = serve(Waiting())
    port = int(endpoint.rpartition(":")[2])
    found = psutil.Process().net_connections(kind="tcp")
    listening = [each.laddr for each in found if each.status == psutil.CONN_LISTEN]
    assert [each.ip for each in listening if each.port == port] == ["127.0.0.1"]


def test_a_prompt_that_takes_too_long_is_given_up(serve: Serve) -> None:
    """By the time it may take, though the peer lives and says so."""
    source = Waiting()
    endpoint = serve(source)
    with pytest.raises(HandoverError, match="silent for too long"):
        fetch(endpoint, timeout_s=1.2)
    assert source.num_asked == 1


@pytest.mark.parametrize(
    ("keys", "content"), [([b"k1"], b"12345678"), ([], b"1234"), ([b"k1", b"k2"], b""), ([], b"")]
)
def test_blocks_of_another_size_are_not_taken(
    serve: Serve, keys: list[bytes], content: bytes
) -> None:
    endpoint = serve(Waiting(lambda: iter([(keys, memoryview(content))])))
    with pytest.raises(HandoverError, match="bytes"):
        fetch(endpoint)


def test_one_that_is_cancelled_ends_at_once(serve: Serve) -> None:
    source = Waiting()
    endpoint = serve(source)
    one = Fetch(SECRET, 60.0, IdleChannels())
    ask = PrefillAsk(REQUEST, Waiting.fingerprint)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(one.run, endpoint, ask, Kept(4, []))
        assert source.is_asked.wait(5.0), running.result(0.0)
        one.cancel()
        with pytest.raises(HandoverError):
            running.result(5.0)
    with pytest.raises(HandoverError, match="ended"):
        one.run(endpoint, ask, Kept(4, []))
