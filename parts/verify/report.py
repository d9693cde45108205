"""One table of two measurements, and whether they agree."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Final

# Of nano's perplexities in float32 an engine in bf16 was up to 1.5 % off, transformers in bf16 6 %,
# and one from the other 8 %. Another scale, layout or attention changes them by far more.
MOST_DIFFERENCE: Final = 0.02
MOST_DIFFERENCE_BF16: Final = 0.1
# Where transformers' two best tokens are this near, rounding may choose the other.
NEAR: Final = 0.5


@dataclass(frozen=True, slots=True)
class Measured:
    """What one side made of the fixed texts."""

    name: str
    logprobs: tuple[tuple[float, ...], ...]  # of each text's tokens
    answers: tuple[tuple[int, ...], ...]  # greedy token ids of each prompt
    is_exact: bool = True  # computed in float32


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A line of the table."""

    what: str
    ours: str
    theirs: str
    agrees: bool
    note: str


def rows(ours: Measured, theirs: Measured, margins: list[list[float]]) -> list[ReportRow]:
    """Compare text by text and answer by answer; `margins` are of `theirs`."""
    found = []
    most = MOST_DIFFERENCE if theirs.is_exact else MOST_DIFFERENCE_BF16
    for number, pair in enumerate(zip(ours.logprobs, theirs.logprobs, strict=True), 1):
        own, other = (exp(-sum(each) / len(each)) for each in pair)
        difference = abs(own / other - 1)
        what = f"perplexity of text {number} ({len(pair[0])} tokens)"
        note = f"{difference:.2%} apart (up to {most:.0%} is ok)"
        found.append(ReportRow(what, f"{own:.4g}", f"{other:.4g}", difference <= most, note))
    for number, answers in enumerate(zip(ours.answers, theirs.answers, strict=True), 1):
        found.append(_of_answer(number, *answers, margins[number - 1]))
    return found


def _of_answer(
    number: int, ours: tuple[int, ...], theirs: tuple[int, ...], margins: list[float]
) -> ReportRow:
    same = 0
    while same < min(len(ours), len(theirs)) and ours[same] == theirs[same]:
        same += 1
    what = f"greedy answer {number}"
    tokens = (f"{len(ours)} tokens", f"{len(theirs)} tokens")
    if ours == theirs:
        return ReportRow(what, *tokens, True, f"{same} of {same} equal")
    margin = margins[min(same, len(margins) - 1)]
    note = f"equal up to token {same + 1}; the two best logits differ by {margin:.2f} there"
    return ReportRow(what, *tokens, margin <= NEAR, note)


def table(ours: Measured, theirs: Measured, found: list[ReportRow]) -> list[str]:
    lines = [("", ours.name, theirs.name, "", "")]
    for row in found:
        lines.append((row.what, row.ours, row.theirs, "ok" if row.agrees else "DIFFERS", row.note))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
