"""The loop that runs one step ahead: what it launches, and what it does when a step fails.

That it gives the tokens of the simple loop is what the other files show: their cores are both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from engines.base import EngineRequest, FinishReason, TokenEvent
from engines.errors import OutOfMemory, RequestFailed
from engines.native.backends.base import Backend, Batch, Capacity, Sampled, Step, TokenMasks
from engines.native.loop.core import EngineCore
from tests.engines.native.scheduling.conftest import LateBackend

MakeRequest = Callable[..., EngineRequest]
PROMPT = [(7 * i) % 50 for i in range(21)]


class Recorder:
    """A backend that notes the calls, and can fail them: `fail[call, step number]`."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.calls: list[tuple[str, int]] = []
        self.batches: list[Batch] = []
        self.fail: dict[tuple[str, int], Exception] = {}

    access = None

    @property
    def capacity(self) -> Capacity:
        return self._inner.capacity

    def close(self) -> None: ...

    def launch(self, batch: Batch) -> RecordedStep:
        number = len(self.batches)
        self.batches.append(batch)
        self.note("launch", number)
        return RecordedStep(self, number, self._inner.launch(batch))

    def note(self, call: str, number: int) -> None:
        self.calls.append((call, number))
        if (error := self.fail.get((call, number))) is not None:
            raise error


class RecordedStep:
    def __init__(self, recorder: Recorder, number: int, inner: Step) -> None:
        self._recorder, self._number, self._inner = recorder, number, inner

    def mask(self, masks: Mapping[int, TokenMasks]) -> None:
        self._inner.mask(masks)
        self._recorder.note("mask", self._number)

    def collect(self) -> list[Sampled]:
        self._recorder.note("collect", self._number)
        return self._inner.collect()

    def steady_tokens(self) -> list[int]:
        return self._inner.steady_tokens()


class EveryThird:
    """A grammar: the token's number leaves the same rest as its place. It may end nowhere."""

    def __init__(self, dead_end: int | None = None) -> None:
        self.taken: list[int] = []
        self._dead_end = dead_end

    def fill(self, mask: Any) -> None:
        place = len(self.taken)
        bits = 0 if place == self._dead_end else 0x9249249249249249 << place % 3
        mask[:] = [bits & 0x7FFFFFFF, 0]

    def accept(self, token_id: int) -> None:
        if token_id % 3 != len(self.taken) % 3:
            raise RuntimeError(f"the grammar does not allow the token {token_id}")
        self.taken.append(token_id)


class Gated(EveryThird):
    """Its mask at one place is not made until `gate` is open."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.gate = threading.Event()
        self._place = place

    def fill(self, mask: Any) -> None:
        if len(self.taken) == self._place:
            assert self.gate.wait(60)
        super().fill(mask)


@pytest.fixture(params=["rows", "steady rows"])
def recorder(make_model: Callable[..., Any], request: pytest.FixtureRequest) -> Recorder:
    takes_steady = request.param == "steady rows"
    return Recorder(LateBackend(make_model().backend(), takes_steady=takes_steady))


@pytest.fixture
def core(make_model: Callable[..., Any], recorder: Recorder) -> EngineCore:
    core: EngineCore = make_model().core(recorder, max_num_batched_tokens=16)
    core.puts_off = False  # which steps there are does not depend on the machine's speed
    return core


def run(core: EngineCore) -> dict[str, list[Any]]:
    """Every request's tokens and, if it failed, its error."""
    ends: dict[str, list[Any]] = {}
    while core.has_work:
        for sequence, outcome in core.step():
            end = ends.setdefault(sequence.request.request_id, [])
            end += outcome.token_ids if isinstance(outcome, TokenEvent) else [type(outcome)]
        core.scheduler.blocks.check_integrity()
    assert core.stats().num_free_kv_blocks == core.stats().num_kv_blocks
    return ends


def test_a_step_is_launched_before_the_one_before_it_is_collected(
    core: EngineCore, recorder: Recorder, make_request: MakeRequest, greedy_answer: Any
) -> None:
    core.scheduler.add(make_request(PROMPT, 3, request_id="a"))
    assert run(core) == {"a": greedy_answer(PROMPT, 3)}
    # Two chunks of the prompt and two decodes; that the third token is the last was known.
    assert recorder.calls == [
        ("launch", 0),
        ("launch", 1),
        ("collect", 0),
        ("launch", 2),
        ("collect", 1),
        ("launch", 3),
        ("collect", 2),
        ("collect", 3),
    ]


def test_what_is_known_to_a_slot_is_not_sent_again(
    core: EngineCore, recorder: Recorder, make_request: MakeRequest
) -> None:
    core.scheduler.add(make_request(PROMPT, 12))
    run(core)
    assert [len(batch.starts) for batch in recorder.batches] == [1] + [0] * 12
    steady = [[] if batch.steady is None else batch.steady.rows() for batch in recorder.batches]
    rows = [[*one, *batch.rows][0] for one, batch in zip(steady, recorder.batches, strict=True)]
    assert [(row.start, row.end, row.is_last) for row in rows[:3]] == [
        (0, 16, False),
        (16, 21, True),
        (21, 22, True),
    ]
    # In blocks of 4 tokens: two for positions 16 to 20, then one each for 24, 28 and 32.
    assert [len(row.full_blocks) for row in rows] == [0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]
    assert [len(row.window_blocks) for row in rows] == [len(row.full_blocks) for row in rows]


def test_a_stop_token_seen_late_costs_one_row_and_nothing_else(
    core: EngineCore, recorder: Recorder, make_request: MakeRequest, greedy_answer: Any
) -> None:
    tokens = greedy_answer(PROMPT, 8)
    stop = tokens.index(tokens[3])
    first = make_request(PROMPT, 8, request_id="a", stop_token_ids=(tokens[3],))
    core.scheduler.add(first)
    events = []
    while core.has_work:
        events += [event for _, event in core.step() if isinstance(event, TokenEvent)]
    assert [token for event in events for token in event.token_ids] == tokens[: stop + 1]
    assert events[-1].finish_reason is FinishReason.STOP
    assert len(recorder.batches) == 2 + stop + 1  # the last one's token is thrown away
    # What the row too many wrote is not taken for a part of the answer.
    again = [*PROMPT, *tokens]
    core.scheduler.add(make_request(again, 6, request_id="b"))
    assert run(core) == {"b": greedy_answer(again, 6)}


def test_a_grammar_is_followed_one_step_ahead(
    core: EngineCore, recorder: Recorder, make_request: MakeRequest, greedy_answer: Any
) -> None:
    guide = EveryThird()
    core.scheduler.add(make_request(PROMPT, 9, request_id="bound"), guide)  # type: ignore[arg-type]
    core.scheduler.add(make_request([1, 2], 9, request_id="free"))
    ends = run(core)
    assert ends["bound"] == guide.taken
    assert [token % 3 for token in guide.taken] == [0, 1, 2] * 3
    assert ends["free"] == greedy_answer([1, 2], 9)
    # The mask of a step waits for the token before it, and its forward pass does not.
    ahead = recorder.calls.index(("mask", 3))
    assert recorder.calls[ahead - 2 : ahead + 1] == [("launch", 3), ("collect", 2), ("mask", 3)]


def test_a_dead_end_costs_its_own_request(
    core: EngineCore, make_request: MakeRequest, greedy_answer: Any
) -> None:
    guide: Any = EveryThird(dead_end=2)
    core.scheduler.add(make_request(PROMPT, 9, request_id="stuck"), guide)
    core.scheduler.add(make_request([1, 2], 9, request_id="free"))
    ends = run(core)
    assert [*map(str, ends["stuck"])] == [
        *map(str, guide.taken),
        "<class 'engines.errors.InvalidGrammar'>",
    ]
    assert ends["free"] == greedy_answer([1, 2], 9)


@pytest.mark.parametrize("call", ["launch", "mask", "collect"])
@pytest.mark.parametrize("number", [2, 3, 5])
def test_a_step_without_memory_costs_one_request_and_the_others_take_it_again(
    call: str,
    number: int,
    core: EngineCore,
    recorder: Recorder,
    make_request: MakeRequest,
    greedy_answer: Any,
) -> None:
    """Whichever call it is that fails, and with a step ahead of it or behind it."""
    recorder.fail[call, number] = MemoryError()
    guide: Any = EveryThird()
    core.scheduler.add(make_request([1, 2], 9, request_id="first"))
    core.scheduler.add(make_request([3, 4], 9, request_id="bound"), guide)
    core.scheduler.add(make_request(PROMPT, 9, request_id="last"))
    ends = run(core)
    assert ends["first"] == greedy_answer([1, 2], 9)
    assert ends["bound"] == guide.taken
    assert len(guide.taken) == 9
    tokens = greedy_answer(PROMPT, 9)
    assert ends["last"][-1] is OutOfMemory
    assert ends["last"][:-1] == tokens[: len(ends["last"]) - 1]


@pytest.mark.parametrize("call", ["launch", "collect"])
def test_another_failure_costs_the_requests_of_its_step(
    call: str, core: EngineCore, recorder: Recorder, make_request: MakeRequest, greedy_answer: Any
) -> None:
    recorder.fail[call, 3] = ValueError("broken")
    for name in "ab":
        core.scheduler.add(make_request([1, 2], 9, request_id=name))
    ends = run(core)
    assert [ends[name][-1] for name in "ab"] == [RequestFailed] * 2
    core.scheduler.add(make_request([1, 2], 9, request_id="c"))
    assert run(core) == {"c": greedy_answer([1, 2], 9)}
    assert core.end is None


def test_requests_of_a_step_ahead_of_a_failed_one_go_on(
    core: EngineCore, recorder: Recorder, make_request: MakeRequest, greedy_answer: Any
) -> None:
    recorder.fail["collect", 1] = ValueError("broken")
    core.scheduler.add(make_request([1, 2], 9, request_id="a"))
    core.step()
    core.step()
    core.scheduler.add(make_request([3, 4], 9, request_id="b"))  # first in step 2
    ends = run(core)
    assert ends["a"][-1] is RequestFailed
    assert ends["b"] == greedy_answer([3, 4], 9)


def test_abandoning_collects_what_is_in_flight(
    core: EngineCore, recorder: Recorder, make_request: MakeRequest
) -> None:
    sequence = core.scheduler.add(make_request(PROMPT, 9))
    core.step()
    core.abandon()
    assert recorder.calls == [("launch", 0), ("collect", 0)]
    core.scheduler.remove(sequence)
    assert not core.has_work
    core.scheduler.blocks.check_integrity()


@pytest.mark.parametrize("place", [0, 3])
def test_no_row_waits_for_the_mask_of_another(
    place: int, make_model: Callable[..., Any], make_request: MakeRequest, greedy_answer: Any
) -> None:
    """Who waits for a mask sits out, and gets the tokens that it would have got."""
    prompt, answers = [5, 6, 7, 8, 9], []
    for guide in (EveryThird(), Gated(place)):
        backend = LateBackend(make_model().backend(), takes_steady=True)
        core: EngineCore = make_model().core(backend, max_num_batched_tokens=16)
        core.scheduler.add(make_request([1, 2], 40, request_id="plain"))
        bound: Any = guide
        sampled = {"temperature": 1.0, "seed": 7, "request_id": "bound"}
        core.scheduler.add(make_request(prompt, 9, **sampled), bound)
        ends: dict[str, list[int]] = {"plain": [], "bound": []}
        while core.has_work:
            for sequence, outcome in core.step():
                assert isinstance(outcome, TokenEvent)
                ends[sequence.request.request_id] += outcome.token_ids
            if isinstance(guide, Gated) and len(ends["plain"]) == 30:
                assert len(guide.taken) <= place
                guide.gate.set()
            core.scheduler.blocks.check_integrity()
        assert ends["plain"] == greedy_answer([1, 2], 40)
        answers.append(ends["bound"])
        assert core.stats().num_free_kv_blocks == core.stats().num_kv_blocks
    assert answers[0] == answers[1]
    assert len(answers[0]) == 9


def test_a_core_whose_only_request_waits_for_its_mask_waits_too(
    core: EngineCore, make_request: MakeRequest
) -> None:
    core.puts_off = True
    guide: Any = Gated(3)
    core.scheduler.add(make_request(PROMPT, 9, request_id="bound"), guide)
    threading.Timer(0.05, guide.gate.set).start()
    assert run(core)["bound"] == guide.taken
    assert core.stats().num_steps == 2 + 8  # none is made while it waits
