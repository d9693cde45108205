"""A head's guesses: how often they were right, and when the next are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.native.drafting import HeadDrafter
from engines.native.loop.sequence import Proposals, Sequence


def dear(_num_sequences: int, num_drafts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Three guesses cost what a step without them costs."""
    return 1 + num_drafts / 3


def test_guesses_are_compared_until_the_first_wrong_one() -> None:
    text = [1, 2]
    proposals = Proposals(text)
    proposals.bring((3, 4, 5, 6))
    text += [3, 4]
    proposals.catch_up()
    assert proposals.guesses == (5, 6)
    assert 0.63 < proposals.rate < 0.64  # two of two were right
    text += [9]
    before = proposals.rate
    proposals.bring((7,))
    assert [*proposals.guesses] == [7]
    assert proposals.rate < before


def follow(
    drafter: HeadDrafter, sequence: Sequence, num: int, *, is_right: bool
) -> list[tuple[int, int]]:
    """Append a token a step; the place and number of the guesses that were asked for."""
    asked = []
    for _ in range(num):
        wanted = drafter.wanted([sequence]).get(sequence, 0)
        sequence.token_ids.append(2)
        if wanted:
            asked.append((len(sequence.token_ids), wanted))
            sequence.proposals.bring((2 if is_right else 3,) * wanted)
    return asked


def test_a_head_that_is_wrong_is_asked_seldom_and_one_that_is_right_more_and_more(
    make_sequence: Callable[..., Sequence],
) -> None:
    drafter, sequence = HeadDrafter(4, dear), make_sequence([1, 2, 3])
    asked = follow(drafter, sequence, 200, is_right=False)
    assert 10 < len(asked) < 25
    assert {num for _, num in asked[3:]} == {1}
    again = follow(drafter, sequence, 200, is_right=True)
    assert max(num for _, num in again) == 4
    assert len([place for place, _ in again if place > again[-1][0] - 20]) == 20


def test_who_is_penalised_is_not_guessed_for(make_sequence: Callable[..., Sequence]) -> None:
    options: dict[str, Any] = {"presence_penalty": 0.5}
    sequence = make_sequence([1, 2, 3], **options)
    drafter = HeadDrafter(4, lambda _, num: 1 + 0 * num)
    assert follow(drafter, sequence, 60, is_right=True) == []
