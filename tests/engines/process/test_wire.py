"""What crosses the socket arrives as it was sent, errors included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from engines.base import (
    EngineInfo,
    EngineRequest,
    EngineStats,
    FinishReason,
    Receive,
    SamplingParams,
)
from engines.base import TokenEvent as Event
from engines.base import TokenLogprob as Logprob
from engines.errors import (
    EngineDead,
    EngineError,
    InvalidGrammar,
    Overloaded,
    RequestFailed,
)
from engines.grammar.tree import (
    MAX_DEPTH,
    Alternation,
    Concatenation,
    Grammar,
    JsonSchema,
    Literal,
    Repeat,
    Text,
    Token,
    Until,
)
from engines.process.client import EngineClient
from engines.process.server import EngineServer
from engines.process.stream import merge
from engines.process.wire import (
    ClientMessage,
    HostMessage,
    HostState,
    StatsReply,
    Status,
    StepMessage,
    StreamFailure,
    Submit,
    error_from,
)
from engines.queueing.admission import QueuedEngine


def all_errors(root: type[EngineError] = EngineError) -> Iterator[type[EngineError]]:
    yield root
    for child in root.__subclasses__():
        yield from all_errors(child)


TREE = Alternation(
    (
        Concatenation(
            (Token(5), Literal("é"), Text(3), Repeat(Until("x"), 1), Repeat(Text(), 0, 4))
        ),
        JsonSchema('{"type":"null"}', "a label"),
        Concatenation(()),
    )
)
REQUEST = EngineRequest(
    request_id="r",
    prompt_token_ids=(1, 2, 200_000),
    sampling=SamplingParams(5, 0.5, 0.9, 4, 0.1, 0.2, 0.3, 1.1, {7: -100.0, 8: 1.5}, 2**63, 3),
    stop_token_ids=(200_002, 200_012),
    grammar=TREE,
    priority=-1,
    cache_salt="salt",
    tenant="acme",
)
EVENT = Event((1, 2), (Logprob(1, -0.5, ((1, -0.5), (9, -2.0))), Logprob(2, -1.0)), None, 16)
INFO = EngineInfo("fake", "1", 256, 512, 8)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (Submit.of(3, REQUEST), ClientMessage),
        (StepMessage([(3, EVENT), (4, Event((5,), None, FinishReason.STOP))]), HostMessage),
        (StepMessage([], [StreamFailure(3, "queue_full", "try later")]), HostMessage),
        (Status(1, HostState.READY, INFO), HostMessage),
        (Status(1, HostState.STARTING), HostMessage),
        (StatsReply(9, EngineStats(*range(9))), HostMessage),
    ],
)
def test_messages_survive_the_round_trip(message: Any, kind: Any) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=kind) == message


def test_a_grammar_arrives_as_it_was_sent() -> None:
    sent = msgspec.msgpack.encode(Submit.of(3, REQUEST))
    assert msgspec.msgpack.decode(sent, type=Submit).whole == REQUEST
    plain = replace(REQUEST, grammar=None)
    assert Submit.of(3, plain).whole == plain


def test_a_grammar_that_is_too_deep_or_none_is_refused() -> None:
    deep: Grammar = Text()
    for _ in range(MAX_DEPTH + 1):
        deep = Repeat(deep)
    with pytest.raises(InvalidGrammar, match="deeper than 64"):
        Submit.of(3, replace(REQUEST, grammar=deep))
    plain: Any = ["Text", None]
    for _ in range(10_000):
        plain = ["Repeat", plain, 0, None]
    for bad in (["Nonsense"], [], plain):
        with pytest.raises(ValueError, match="no grammar"):
            _ = Submit(3, REQUEST, bad).whole


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [error.code for error in all_errors()]
    assert len(codes) == len(set(codes))


def test_an_error_of_a_newer_engine_stays_readable() -> None:
    assert str(error_from("melted", "the chip is gone")) == "melted: the chip is gone"


class Raising:
    """A runner that fails each request after one event, as a test told it to."""

    info = INFO
    error: Exception = RequestFailed("as asked")

    async def start(self) -> None: ...

    async def prepare(self, request: EngineRequest) -> EngineRequest:
        return request

    def num_cached_tokens(self, run: EngineRequest) -> int | None: ...

    def begin(self, run: EngineRequest, receive: Receive, arrived_s: float) -> None:
        receive(EVENT)
        if not isinstance(self.error, EngineError):
            raise self.error
        receive(self.error)

    def abort(self, run: EngineRequest) -> None: ...

    async def stats(self) -> EngineStats:
        raise RuntimeError("no counts")

    async def check_health(self) -> None: ...

    async def stop(self) -> None: ...


@pytest.fixture
async def raising(temp_folder: Path, no_leaks: None) -> AsyncIterator[tuple[Raising, EngineClient]]:
    runner = Raising()
    engine = QueuedEngine(runner, max_num_waiting=8)
    await engine.start()
    server = EngineServer(f"ipc://{temp_folder}/engine.sock")
    server.serve(engine)
    client = EngineClient(f"ipc://{temp_folder}/engine.sock")
    await client.start()
    yield runner, client
    await client.stop()
    await server.close()


async def failure(client: EngineClient) -> EngineError:
    received = []
    try:
        async for event in client.generate(REQUEST):
            received.append(event)
    except EngineError as error:
        assert received == [EVENT]  # what came before the error is not lost
        return error
    raise AssertionError("no error")


async def test_a_refusal_says_when_to_come_again(raising: tuple[Raising, EngineClient]) -> None:
    engine, client = raising
    engine.error = Overloaded("too long", retry_s=7)
    error = await failure(client)
    assert isinstance(error, Overloaded)
    assert error.retry_s == 7


@pytest.mark.parametrize("kind", list(all_errors()))
async def test_every_error_is_raised_as_itself_by_the_client(
    raising: tuple[Raising, EngineClient], kind: type[EngineError]
) -> None:
    engine, client = raising
    engine.error = kind("why: 'x' = 3; do y")
    error = await failure(client)
    assert type(error) is kind
    assert str(error) == "why: 'x' = 3; do y"


async def test_a_bug_of_the_engine_fails_the_request_not_the_host(
    raising: tuple[Raising, EngineClient],
) -> None:
    engine, client = raising
    engine.error = ZeroDivisionError("division by zero")
    error = await failure(client)
    assert type(error) is RequestFailed
    assert str(error) == "ZeroDivisionError: division by zero"
    await client.check_health()


async def test_stats_that_never_come(
    raising: tuple[Raising, EngineClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.process.client.STATS_TIMEOUT_S", 0.1)
    with pytest.raises(EngineDead, match=r"no stats within 0\.1 s"):
        await raising[1].stats()


async def test_an_undecodable_message_harms_nobody(
    raising: tuple[Raising, EngineClient], temp_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, client = raising
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.connect(f"ipc://{temp_folder}/engine.sock")
    stranger.send(b"\xc1 not msgpack")
    async with asyncio.timeout(60):
        while "could not be handled" not in caplog.text:
            await asyncio.sleep(0.005)
    assert type(await failure(client)) is RequestFailed
    context.destroy(linger=0)


def test_merged_events_are_the_event_of_one_longer_step() -> None:
    last = Event((3,), (Logprob(3, -0.1),), FinishReason.STOP, 16)
    assert EVENT.logprobs is not None
    assert last.logprobs is not None
    merged = merge([EVENT, last])
    assert merged == Event((1, 2, 3), EVENT.logprobs + last.logprobs, FinishReason.STOP, 16)
    assert merge([Event((1,)), Event((2,))]) == Event((1, 2))
