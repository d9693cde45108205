"""A real subscriber gets every event once, in order, and notices what it missed."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import zmq

from engines.base import EngineRequest, SamplingParams
from engines.errors import EngineStartError
from engines.factory import create
from engines.spec import EngineSpec
from parts.kv_events.events import KvEvents, Removed
from parts.kv_events.wire import number_of, salt_key
from tests import loopback
from tests.engines.native.small_model import small_config, write_small
from tests.parts.kv_events.connecting import (
    ANY_PORT,
    TIMEOUT_MS,
    TOPIC,
    Publish,
    Reader,
    events_of,
    stored,
    until_subscribed,
)
from tests.parts.kv_events.llm_d import Picker


def test_a_subscriber_gets_topic_number_and_batch(reader: Reader, publisher: Publish) -> None:
    sender = publisher(rank=3)
    subscriber = reader.connect(zmq.SUB, sender.endpoint)
    last = until_subscribed(sender, subscriber)
    for number in range(1, 100):
        sender.publish([stored(number), Removed([bytes(15) + bytes([number])], True, "CPU")])
    seen: list[Any] = []
    while len(seen) < 99:
        topic, frame, payload = subscriber.recv_multipart()
        assert topic == TOPIC.encode()
        assert int.from_bytes(frame, "big") == last + 1
        last += 1
        at_s, events, rank = msgspec.msgpack.decode(payload)
        assert at_s > 1.7e9
        assert rank == 3
        seen += [event for event in events if event[1] != [0]]
        seen = [event for event in seen if event[0] == "BlockStored"]
    common = ["BlockStored", [7], None, [7] * 4, 4, None, "GPU", None, None]
    assert seen[6] == [*common, 0, "full_attention", None]
    assert events[1] == ["BlockRemoved", [99], "CPU", 1]


def test_who_missed_messages_notices_and_gets_them_again(
    reader: Reader, publisher: Publish
) -> None:
    sender = publisher()
    subscriber = reader.connect(zmq.SUB, sender.endpoint)
    last = until_subscribed(sender, subscriber)
    subscriber.unsubscribe(b"kv@")
    subscriber.subscribe(b"nothing")
    while reader.replay(sender.replay_endpoint)[-1][1] < last + 5:
        sender.publish([stored(1)])
    subscriber.subscribe(b"kv@")
    while True:
        number = until_subscribed(sender, subscriber)
        if number > last + 1:
            break
        last = number
    missed = reader.replay(sender.replay_endpoint, last + 1)
    assert [each[1] for each in missed[: number - last]] == [*range(last + 1, number + 1)]
    assert {each[0] for each in missed} == {TOPIC.encode()}
    everything = reader.replay(sender.replay_endpoint)
    assert everything[0][1] == 0
    assert events_of(everything[0][2])[0] == ["AllBlocksCleared"]
    assert reader.replay(sender.replay_endpoint, everything[-1][1] + 1000) == []


def test_a_request_socket_gets_what_it_asks_for(reader: Reader, publisher: Publish) -> None:
    """As vLLM's example asks: REQ takes one message of an answer."""
    sender = publisher()
    sender.publish([stored(1)])
    reader.replay(sender.replay_endpoint)
    asking = reader.connect(zmq.REQ, sender.replay_endpoint)
    asking.send(bytes(8))
    topic, number, payload = asking.recv_multipart()
    assert (topic, number) == (TOPIC.encode(), bytes(8))
    assert events_of(payload)[0] == ["AllBlocksCleared"]


def test_it_listens_on_ipv6_too(reader: Reader, publisher: Publish) -> None:
    sender = publisher(endpoint="tcp://[::1]:0", replay_endpoint="tcp://[::1]:0")
    sender.publish([stored(1)])
    reader.is_ipv6 = True
    assert len(reader.replay(sender.replay_endpoint)) <= 1


def test_what_is_no_request_is_passed_over(reader: Reader, publisher: Publish) -> None:
    sender = publisher()
    sender.publish([stored(1)])
    for frames in ([b"x"], [b"", b"short"], [b"", b"", bytes(8)], [b"", bytes(10_000)]):
        reader.connect(zmq.DEALER, sender.replay_endpoint).send_multipart(frames)
    assert len(reader.replay(sender.replay_endpoint)) == 1


def test_a_full_queue_holds_nobody_up_and_routers_forget(
    reader: Reader, publisher: Publish
) -> None:
    sender = publisher(max_waiting_blocks=2)
    sender.publish([stored(1)])
    sender.publish([stored(2), stored(3), stored(4)])  # more than may wait: left out

    def kept() -> list[Any]:
        return [events_of(each[2]) for each in reader.replay(sender.replay_endpoint)]

    until_s = time.monotonic() + TIMEOUT_MS / 1000
    while [["AllBlocksCleared"]] not in (messages := kept()):
        assert time.monotonic() < until_s, messages
    while len(messages) < 3:
        assert time.monotonic() < until_s, messages
        sender.publish([stored(5)])
        messages = kept()
    assert [event[:2] for event in messages[0]] == [["AllBlocksCleared"], ["BlockStored", [1]]]
    assert messages[1] == [["AllBlocksCleared"]]
    assert messages[2][0][:2] == ["BlockStored", [5]]


def test_the_sockets_listen_on_the_named_address_alone(publisher: Publish) -> None:
    sender = publisher()
    for endpoint in (sender.endpoint, sender.replay_endpoint):
        assert endpoint is not None
        port = int(endpoint.rpartition(":")[2])
        socket.create_connection((loopback.ADDRESS, port)).close()
        with pytest.raises(OSError, match=r"refused|unreachable"):
            socket.create_connection(("127.0.0.2", port))


def test_without_a_replay_endpoint_one_port_is_open(publisher: Publish) -> None:
    assert publisher(replay_endpoint=None).replay_endpoint is None


def test_a_taken_port_is_named(publisher: Publish) -> None:
    endpoint = publisher().endpoint
    assert endpoint is not None
    with pytest.raises(
        EngineStartError, match=f"{re.escape(endpoint)}: Address already in use; use"
    ):
        publisher(endpoint=endpoint)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Any]:
    """The native engine on a small model, which publishes on a port that is free."""
    folder = write_small(tmp_path / "model", small_config(200))
    options = {"num_threads": 1, "block_size": 4, "num_kv_blocks": 60}
    events = KvEvents(ANY_PORT, ANY_PORT)
    engine: Any = create(
        EngineSpec("native", options, model_dir=str(folder), parts={"kv_events": asdict(events)})
    )
    await engine.start()
    yield engine
    await engine.stop()


async def test_the_engine_tells_what_it_caches(engine: Any, reader: Reader) -> None:
    prompts = [tuple(range(number, number + 18)) for number in (1, 1, 3, 5)]
    cached = []
    for number, prompt in enumerate(prompts):
        salt = "theirs" if number == 2 else None
        sampling = SamplingParams(3, temperature=0.0)
        request = EngineRequest(str(number), prompt, sampling, cache_salt=salt)
        events = [event async for event in engine.generate(request)]
        cached.append(events[-1].num_cached_tokens)
    assert cached == [0, 16, 0, 0]
    messages = await asyncio.to_thread(reader.replay, engine._options[0]._sink.replay_endpoint)
    assert [number for _, number, _ in messages] == [*range(len(messages))]
    picker = Picker(4)
    for _, _, payload in messages:
        picker.take(payload)
    assert [picker.num_believed(prompt) for prompt in prompts] == [4, 4, 0, 4]
    events = [event for message in messages for event in events_of(message[2])]
    salted = [event for event in events if event[0] == "BlockStored" and event[8]]
    assert {event[8][0][0] for event in salted} == {salt_key("theirs")}
    assert {event[9] for event in salted} == {0, 1}  # full attention, and sliding


def test_hashes_are_numbers_as_llm_d_reads_bytes() -> None:
    assert number_of(bytes.fromhex("ff" * 8 + "00000000000000a1")) == 0xA1


async def test_an_engine_that_cannot_load_gives_the_port_back(tmp_path: Path) -> None:
    endpoint = f"tcp://{loopback.IN_URL}:{loopback.free_port()}"
    broken = EngineSpec(
        "native", model_dir=str(tmp_path), parts={"kv_events": {"endpoint": endpoint}}
    )
    num_fds = psutil.Process().num_fds()
    for _ in range(2):
        engine = create(broken)
        with pytest.raises(EngineStartError, match=r"config\.json"):
            await engine.start()
        await engine.stop()
    assert psutil.Process().num_fds() <= num_fds
