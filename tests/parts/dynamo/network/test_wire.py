"""Nothing of a request, an event or an error is lost between front and worker."""

from __future__ import annotations

from typing import Any

import pytest

from engines.base import (
    EngineInfo,
    EngineRequest,
    EngineStats,
    FinishReason,
    SamplingParams,
    TokenEvent,
    TokenLogprob,
)
from engines.errors import EngineError, InvalidGrammar, Overloaded
from engines.grammar.tree import Regex
from engines.process.wire import Submit
from parts.dynamo.network.log_lines import as_ours
from parts.dynamo.network.wire import (
    Ask,
    EventReader,
    EventWriter,
    Failure,
    State,
    asked,
    read_answer,
    read_question,
    written,
)

SAMPLING = SamplingParams(
    max_tokens=9, temperature=0.1, logit_bias={7: -100.0, 9: 0.3}, seed=2**63 - 1, logprobs=2
)


def test_a_request_arrives_as_it_was() -> None:
    request = EngineRequest(
        "r",
        (1, 2, 3),
        SAMPLING,
        stop_token_ids=(5,),
        grammar=Regex("[a-f]{3}"),
        priority=3,
        cache_salt="salt",
        tenant="a tenant",
        max_wait_s=1.5,
        generated_token_ids=(8, 9),
    )
    arrived = read_question(asked(request))
    assert isinstance(arrived, Submit)
    assert arrived.whole == request
    assert read_question(written(Ask())) == Ask()


@pytest.mark.parametrize("given", [{"token_ids": [1]}, "not base64!", "AAAA"])
def test_what_is_not_of_our_front_is_a_value_error(given: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_question(given)


def test_events_arrive_as_they_were() -> None:
    """Also log-probabilities that JSON cannot hold, and a restart within the answer."""
    logprobs = (TokenLogprob(5, -0.25, ((5, -0.25), (6, float("-inf")))),)
    events = [
        TokenEvent((1,), num_cached_tokens=16, queued_s=0.5),
        TokenEvent((2, 3), num_cached_tokens=16, queued_s=0.5),
        TokenEvent((5,), logprobs, num_cached_tokens=16, queued_s=0.5),
        TokenEvent((4,), None, FinishReason.STOP, 16, 0.5),
    ]
    writer, reader = EventWriter(), EventReader()
    chunks = [writer.chunk(event) for event in events]
    assert chunks[1] == [2, 3]
    assert [reader.event(chunk) for chunk in chunks] == events


@pytest.mark.parametrize(
    "error", [InvalidGrammar("no such rule"), Overloaded("try later", retry_s=7)]
)
def test_an_error_arrives_with_its_class(error: EngineError) -> None:
    with pytest.raises(type(error), match=str(error)) as caught:
        EventReader().event(written(Failure.of(error)))
    assert getattr(caught.value, "retry_s", None) == getattr(error, "retry_s", None)


def test_a_state_arrives_as_it_was() -> None:
    state = State(EngineInfo("native", "1", 4096, 1000, 8), EngineStats(generated_tokens=5))
    chunk = written(state)
    assert isinstance(chunk, str)
    assert read_answer(chunk) == state


def test_the_librarys_lines_become_ours_and_those_of_each_request_are_left_out() -> None:
    line = '{"level":"WARN","target":"dynamo_runtime::x","message":"it is slow","span":1}'
    assert as_ours(line) == "WARNING dynamo_runtime::x: it is slow"
    assert as_ours('{"level":"INFO","target":"request_span","message":"completed"}') is None
    for other in ("INFO engines: ready", '{"a": 1}', "{"):
        assert as_ours(other) == other


def test_what_the_library_repeats_does_not_fill_the_log() -> None:
    """Anyone who reaches its ports can make it write lines."""
    line = '{"level":"ERROR","target":"dynamo_runtime::tcp","message":"bad magic"}'
    told = [as_ours(line) for _ in range(200)]
    assert 20 <= sum(each is not None for each in told) < 30
    assert as_ours('{"level":"ERROR","target":"dynamo_runtime::x","message":"lost"}') is not None
