"""An answer that repeats itself ends where its request says so (repetition_detection)."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Sequence_
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest

from engines.base import EngineRequest, FinishReason
from engines.fields import RepetitionDetection
from engines.native.host.repetition import Repetition
from engines.native.loop.core import EngineCore
from engines.native.loop.option import Option
from engines.native.loop.sequence import Sequence

Fixture = Callable[..., Any]
PROMPT = [(7 * i) % 50 for i in range(21)]


def ends_with_patterns(token_ids: list[int], asked: RepetitionDetection) -> bool:
    """The definition, word for word."""
    return any(
        len(token_ids) >= size * asked.min_count
        and token_ids[-size * asked.min_count :] == token_ids[-size:] * asked.min_count
        for size in range(max(asked.min_pattern_size, 1), asked.max_pattern_size + 1)
    )


@pytest.mark.parametrize(
    "asked",
    [
        RepetitionDetection(1, 2),
        RepetitionDetection(1, 5),
        RepetitionDetection(4, 3),
        RepetitionDetection(7, 2, min_pattern_size=3),
    ],
    ids=str,
)
def test_it_is_found_at_the_same_token_as_by_the_definition(asked: RepetitionDetection) -> None:
    random = np.random.default_rng(1)
    for circle in range(1, 9):
        pattern = random.integers(0, 3, circle).tolist()
        token_ids = [*random.integers(0, 3, 30).tolist(), *islice(cycle(pattern), 40)]
        repetition = Repetition(asked, [])
        for end, token_id in enumerate(token_ids, start=1):
            assert repetition.add(token_id) == ends_with_patterns(token_ids[:end], asked)


def run(core: EngineCore, request: EngineRequest) -> tuple[list[int], FinishReason | None]:
    sequence, reason = core.scheduler.add(request), None
    answer: list[int] = []
    while core.has_work:
        for told, event in core.step():
            assert told is sequence
            answer += event.token_ids  # type: ignore[union-attr]
            reason = event.finish_reason  # type: ignore[union-attr]
    return answer, reason


@pytest.mark.parametrize("changes", [{}, {"min_tokens": 40}, {"generated": 12}], ids=str)
def test_an_answer_ends_as_by_its_limit(
    make_core: Fixture, make_request: Fixture, changes: dict[str, int]
) -> None:
    """At the first token that completes the patterns, of a run that was continued too."""
    asked = RepetitionDetection(max_pattern_size=8, min_count=4)
    free, _ = run(make_core(repetition=9.0), make_request(PROMPT, 80))  # it runs in circles of 5
    least, num_before = changes.get("min_tokens", 1), changes.get("generated", 0)
    end = next(end for end in range(least, 80) if ends_with_patterns(free[:end], asked))
    assert end < 60
    asking = {"repetition_detection": asked, "min_tokens": changes.get("min_tokens", 0)}
    request = replace(
        make_request(PROMPT, 80, **asking), generated_token_ids=tuple(free[:num_before])
    )
    core = make_core(repetition=9.0)
    assert run(core, request) == (free[num_before:end], FinishReason.LENGTH)
    beside, _ = run(core, make_request(PROMPT, 80))
    assert beside == free


class Circle(Option):
    """Drafts of the tokens after the last, in a circle of 5."""

    def waits(self, decoding: Sequence_[Sequence]) -> bool:
        return True

    def drafts(self, decoding: Sequence_[Sequence]) -> dict[Sequence, tuple[int, ...]]:
        return {
            sequence: tuple((sequence.token_ids[-1] + i) % 5 for i in range(1, 8))
            for sequence in decoding
        }


def test_right_drafts_after_the_end_are_dropped(make_core: Fixture, make_request: Fixture) -> None:
    asked = RepetitionDetection(max_pattern_size=8, min_count=4)
    cores = [make_core(repetition=9.0), make_core(repetition=9.0, extra=[Circle()])]
    plain, drafted = (
        run(core, make_request(PROMPT, 80, repetition_detection=asked)) for core in cores
    )
    assert drafted == plain
    assert cores[1].stats().accepted_draft_tokens > len(plain[0]) // 2
