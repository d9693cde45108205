"""What a step takes: a model of its seconds, by what is computed and copied in it.

A step decodes rows of one token and prefills chunks of prompts. Its time is taken to be

    decode(rows) + per_context * context + prefill(tokens) + per_pair * pairs

`decode` and `prefill` are tables; `context` is how many tokens the rows attend to together, and
`pairs` how many pairs of a prompt's token and a token before it the chunks attend to. In a step
with chunks `decode(rows)` counts by a share, `beside`: one forward pass may compute both. All is
measured once (calibration.py) and corrected while the engine serves (`note`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

SMALLEST_CHUNK: Final = 64  # tokens
_LEARNING: Final = 0.1  # the share of an error that one step corrects
_FIRST_LEARNING: Final = 0.5  # of the first step, and less of each that follows
_HARDLY_MORE: Final = 1.2
_MOST_WRONG: Final = 2.0  # a pause, or a step beside another program, is no measurement


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step computes."""

    rows: int = 0  # that decode, drafts included
    context: int = 0  # tokens that these rows attend to together
    tokens: int = 0  # of prompts
    pairs: int = 0  # of a prompt's token and a token that it attends to

    def __add__(self, other: StepWork) -> StepWork:
        return StepWork(
            self.rows + other.rows,
            self.context + other.context,
            self.tokens + other.tokens,
            self.pairs + other.pairs,
        )

    def __sub__(self, other: StepWork) -> StepWork:
        return StepWork(
            self.rows - other.rows,
            self.context - other.context,
            self.tokens - other.tokens,
            self.pairs - other.pairs,
        )


class CostTable:
    """Seconds by a number of rows or tokens: those of some sizes, and lines between them."""

    def __init__(self, seconds: Mapping[int, float]) -> None:
        self.sizes = sorted(seconds)
        self._seconds = [seconds[size] for size in self.sizes]
        self._make_monotonic()

    def seconds(self, num: int) -> float:
        """Seconds for `num`; 0 for none."""
        if num <= 0:
            return 0.0
        sizes, seconds = self.sizes, self._seconds
        i = bisect_left(sizes, num)
        if i == len(sizes):
            return seconds[-1] * num / sizes[-1]
        if i == 0 or sizes[i] == num:
            return seconds[i]
        share = (num - sizes[i - 1]) / (sizes[i] - sizes[i - 1])
        return seconds[i - 1] + share * (seconds[i] - seconds[i - 1])

    def scale(self, num: int, factor: float) -> None:
        i = min(bisect_left(self.sizes, num), len(self.sizes) - 1)
        self._seconds[i] *= factor
        if i > 0 and self.sizes[i] != num:
            self._seconds[i - 1] *= factor
        self._make_monotonic(i)

    def as_dict(self) -> dict[int, float]:
        return dict(zip(self.sizes, self._seconds, strict=True))

    def _make_monotonic(self, kept: int = 0) -> None:
        """More never takes less: sizes that no step had lately follow the one that was kept."""
        seconds = self._seconds
        for i in range(kept - 1, -1, -1):
            seconds[i] = min(seconds[i], seconds[i + 1])
        for i in range(kept + 1, len(seconds)):
            seconds[i] = max(seconds[i], seconds[i - 1])


class StepCosts:
    """Predicts a step's seconds; all calls come from one thread."""

    def __init__(
        self,
        decode: CostTable,
        prefill: CostTable,
        per_context: float,
        per_pair: float,
        round_tokens: int = 1,
        beside: float = 1.0,
    ) -> None:
        """round_tokens: attention of a chunk takes as long as that of the next multiple of it."""
        self._decode, self._prefill = decode, prefill
        self._per_context, self._per_pair = per_context, per_pair
        self._round_tokens, self._beside = max(round_tokens, 1), beside
        self.error = 0.0  # the fading mean of how far predictions were off, as a share
        self._learning = _FIRST_LEARNING

    def seconds(self, work: StepWork) -> float:
        return sum(self._parts(work))

    def chunk(self, start: int, num: int) -> StepWork:
        """The work of the tokens [start, start + num) of a prompt."""
        rounds = -(-num // self._round_tokens)
        pairs = rounds * self._round_tokens * start + num * num // 2
        return StepWork(tokens=num, pairs=pairs)

    def prompt_seconds(self, start: int, num: int, most: int) -> float:
        """How long the tokens [start, start + num) of a prompt take, up to `most` in a step."""
        pieces = [(at, min(most, start + num - at)) for at in range(start, start + num, most)]
        return sum(self.seconds(self.chunk(at, size)) for at, size in pieces)

    def most_tokens(self, work: StepWork, start: int, most: int, budget_s: float) -> int:
        """The longest chunk from `start` on, up to `most` tokens, that fits the budget beside the
        other work of the step; 0 if none does."""
        if self.seconds(work + self.chunk(start, most)) <= budget_s:
            return most
        low, high = 0, most  # low fits, high does not
        while high - low > 1:
            middle = (low + high) // 2
            if self.seconds(work + self.chunk(start, middle)) <= budget_s:
                low = middle
            else:
                high = middle
        return low

    def small_chunk(self, start: int, most: int) -> int:
        """The longest chunk, up to `most` tokens, that takes hardly more than the smallest."""
        smallest = self.chunk(start, min(self._prefill.sizes[0], most))
        return self.most_tokens(StepWork(), start, most, _HARDLY_MORE * self.seconds(smallest))

    def good_chunk(self) -> int:
        """Tokens of the smallest chunk that is no waste: a token takes at most twice the time that
        one of the best chunk takes."""
        each = {size: seconds / size for size, seconds in self._prefill.as_dict().items()}
        return min(size for size, seconds in each.items() if seconds <= 2 * min(each.values()))

    def note(self, work: StepWork, seconds: float) -> None:
        """Correct the model by a step that was seen to take so long.

        What is off is put down to the parts of the step in proportion to what they were taken for.
        """
        parts = self._parts(work)
        expected = sum(parts)
        if expected <= 0:
            return
        ratio = min(max(seconds / expected, 1 / _MOST_WRONG), _MOST_WRONG)
        self.error += (abs(ratio - 1) - self.error) * _LEARNING
        factors = [1 + self._learning * part / expected * (ratio - 1) for part in parts]
        self._learning = max(0.97 * self._learning, _LEARNING)
        if work.rows and work.tokens:
            self._beside *= factors[0]
        elif work.rows:
            self._decode.scale(work.rows, factors[0])
        if work.rows:
            self._per_context *= factors[1]
        if work.tokens:
            self._prefill.scale(work.tokens, factors[2])
            self._per_pair *= factors[3]

    def as_dict(self) -> dict[str, Any]:
        return {
            "decode": self._decode.as_dict(),
            "prefill": self._prefill.as_dict(),
            "per_context": self._per_context,
            "per_pair": self._per_pair,
            "round_tokens": self._round_tokens,
            "beside": self._beside,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The model that as_dict() gave; the keys of its tables may be text."""
        decode, prefill = (
            CostTable({int(n): s for n, s in values[name].items()})
            for name in ("decode", "prefill")
        )
        per_context, per_pair = values["per_context"], values["per_pair"]
        round_tokens, beside = values["round_tokens"], values.get("beside", 1.0)
        return cls(decode, prefill, per_context, per_pair, round_tokens, beside)

    def _parts(self, work: StepWork) -> tuple[float, float, float, float]:
        return (
            self._decode.seconds(work.rows) * (self._beside if work.tokens else 1.0),
            self._per_context * work.context,
            self._prefill.seconds(work.tokens),
            self._per_pair * work.pairs,
        )


def assumed_costs(max_num_seqs: int, max_num_batched_tokens: int) -> StepCosts:
    """Costs without measurements: those of a slow machine, corrected while serving."""
    rows = {n: 0.01 + 0.001 * n for n in powers(1, max_num_seqs)}
    tokens = {n: 0.0005 * n for n in powers(SMALLEST_CHUNK, max_num_batched_tokens)}
    return StepCosts(CostTable(rows), CostTable(tokens), per_context=1e-7, per_pair=1e-8)


def powers(first: int, last: int) -> list[int]:
    """The first number, its doubles below the last, and the last."""
    sizes = [min(first, last)]
    while sizes[-1] < last:
        sizes.append(min(2 * sizes[-1], last))
    return sizes
