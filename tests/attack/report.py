"""What attacks did to everybody else, by run, by row and by engine."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from tests.attack.meter import Reading
from tests.attack.probe import Window

MOST_LIVE_GAP_S: Final = 0.1
MOST_GAP_RATIO: Final = 3.0
MOST_ORDINARY_RATIO: Final = 1.5  # beside plain requests that are the same work
MOST_GROWTH_BYTES: Final = 256 << 20  # of the API processes; unread answers may have half of it
MOST_WARNINGS: Final = 100  # lines in the log that one address without a key may cause
MOST_TURN_CPU_S: Final = 0.05  # what a loop is to spend in a turn: holds on a busy machine too


@dataclass(frozen=True, slots=True)
class Run:
    """An attack that went on for a while."""

    statuses: dict[str, int]  # answers by status; "0": none came in time, or no connection
    slowest_s: float  # of the answers
    live_gap_s: float
    token_gap_p99_s: float
    num_refused: int
    num_broken: int
    has_recovered: bool
    loops: dict[str, Reading]  # by process
    growth_bytes: int  # of the API processes' memory while it went on
    most_growth_bytes: int = MOST_GROWTH_BYTES
    num_warnings: int = 0  # in the log, where they are counted

    @property
    def turn_cpu_s(self) -> float:
        """The longest turn of any loop."""
        return max((reading.turn_cpu_s for reading in self.loops.values()), default=0.0)

    def faults(self) -> Iterator[str]:
        """What may never happen, on however busy a machine."""
        for status, number in self.statuses.items():
            if status[0] == "5" and status != "503":
                yield f"{number} answers {status}"
        if "0" in self.statuses:
            yield f"{self.statuses['0']} requests without an answer"
        if self.num_refused:
            yield f"{self.num_refused} requests of the other caller refused"
        if self.num_broken:
            yield f"{self.num_broken} streams of the other caller broken"
        if self.growth_bytes > self.most_growth_bytes:
            yield f"the processes grew by {self.growth_bytes / 1e6:.0f} MB"
        if self.num_warnings > MOST_WARNINGS:
            yield f"{self.num_warnings} warnings in the log"
        if not self.has_recovered:
            yield "it did not recover"


@dataclass(slots=True)
class Row:
    """An attack, repeated while it seems to do harm."""

    name: str
    path: str
    num_bytes: int
    runs: list[Run] = field(default_factory=list)
    ordinary_p99s_s: list[float] = field(default_factory=list)  # beside plain requests, if measured

    @property
    def live_gap_s(self) -> float:
        return statistics.median(run.live_gap_s for run in self.runs)

    @property
    def token_gap_p99_s(self) -> float:
        return statistics.median(run.token_gap_p99_s for run in self.runs)

    @property
    def turn_cpu_s(self) -> float:
        return statistics.median(run.turn_cpu_s for run in self.runs)

    def most_gap_s(self, usual_s: float) -> float:
        """The limit of the other caller's p99 gap."""
        most_s = MOST_GAP_RATIO * usual_s
        if not self.ordinary_p99s_s:
            return most_s
        return max(most_s, MOST_ORDINARY_RATIO * statistics.median(self.ordinary_p99s_s))

    def harm(self, usual_s: float) -> list[str]:
        """What is over its limit and by how much; `usual_s`: the other caller's p99 gap."""
        found = [fault for run in self.runs for fault in run.faults()]
        if self.live_gap_s > MOST_LIVE_GAP_S:
            found.append(
                f"liveness waited {1000 * self.live_gap_s:.0f} ms, "
                f"{1000 * (self.live_gap_s - MOST_LIVE_GAP_S):.0f} ms over its limit"
            )
        most_s = self.most_gap_s(usual_s)
        if self.token_gap_p99_s > most_s:
            found.append(
                f"the other caller's p99 gap was {1000 * self.token_gap_p99_s:.0f} ms, "
                f"{1000 * (self.token_gap_p99_s - most_s):.0f} ms over its limit"
                f"{self._told_ordinary()}"
            )
        return found

    def _told_ordinary(self) -> str:
        if not self.ordinary_p99s_s:
            return ""
        median_ms = 1000 * statistics.median(self.ordinary_p99s_s)
        return f" ({median_ms:.0f} ms beside plain requests)"

    def line(self, run: Run, usual_s: float) -> str:
        """One run, for people."""
        answers = " ".join(f"{status}x{count}" for status, count in run.statuses.items())
        turns = " ".join(
            f"{name} {1000 * reading.turn_cpu_s:4.0f}" for name, reading in run.loops.items()
        )
        return (
            f"{'!' if self.harm(usual_s) else ' '} {self.name[:44]:44} {self.num_bytes / 1e6:5.2f} "
            f"MB  live {1000 * run.live_gap_s:5.0f} ms  p99 {1000 * run.token_gap_p99_s:5.0f} ms  "
            f"turn's CPU ms: {turns}  slowest {run.slowest_s:4.1f} s  "
            f"memory +{run.growth_bytes / 1e6:.0f} MB  {answers}{self._told_ordinary()}"
        )


class Report:
    """All rows with one engine."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.rows: list[Row] = []
        self.quiet: list[Window] = []
        self.num_deaf = 0  # servers that SIGTERM did not end

    @property
    def usual_s(self) -> float:
        """The other caller's p99 gap while nobody attacks."""
        return p99([gap for window in self.quiet for gap in window.token_gaps_s])

    def harmful(self) -> list[Row]:
        return [row for row in self.rows if row.harm(self.usual_s)]

    def costly(self) -> list[Row]:
        """Those that may do harm on a busier machine."""
        return [row for row in self.rows if row.turn_cpu_s > MOST_TURN_CPU_S]

    def summary(self) -> Iterator[str]:
        """Each row over a limit: by how much, on what route, and what the loops were at."""
        usual_ms = 1000 * self.usual_s
        yield (
            f"{self.engine}: {len(self.harmful())} of {len(self.rows)} attacks did harm; the other "
            f"caller's p99 gap is usually {usual_ms:.0f} ms, its limit "
            f"{MOST_GAP_RATIO * usual_ms:.0f} ms"
        )
        for row in self.harmful():
            yield f"! {row.name}, POST {row.path}: {'; '.join(row.harm(self.usual_s))}"
            yield from _turns(row)
        for row in self.costly():
            yield f"~ {row.name}, POST {row.path}: {1000 * row.turn_cpu_s:.0f} ms of CPU in a turn"
            yield from _turns(row)

    def document(self) -> dict[str, object]:
        """For machines."""
        answers, runs = Counter[str](), [run for row in self.rows for run in row.runs]
        for run in runs:
            answers.update(run.statuses)
        return {
            "engine": self.engine,
            "num_attacks": len(self.rows),
            "live_gap_s": max((row.live_gap_s for row in self.rows), default=0.0),
            "token_gap_p99_s": max((row.token_gap_p99_s for row in self.rows), default=0.0),
            "token_gap_p99_quiet_s": self.usual_s,
            "growth_bytes": max((run.growth_bytes for run in runs), default=0),
            "turn_cpu_s": max((row.turn_cpu_s for row in self.rows), default=0.0),
            "num_neighbour_refused": sum(run.num_refused for run in runs),
            "num_neighbour_broken": sum(run.num_broken for run in runs),
            "num_5xx": sum(n for status, n in answers.items() if status[0] == "5"),
            "statuses": dict(sorted(answers.items())),
            "num_deaf_to_sigterm": self.num_deaf,
            "harmful": [asdict(row) | {"harm": row.harm(self.usual_s)} for row in self.harmful()],
            "costly": [row.name for row in self.costly()],
        }


def _turns(row: Row) -> Iterator[str]:
    """Where the longest turns were, by process."""
    for run in row.runs:
        for name, reading in run.loops.items():
            if reading.turn_cpu_s > MOST_TURN_CPU_S / 2:
                yield (
                    f"    {name}: {1000 * reading.turn_cpu_s:.0f} ms of CPU, of which "
                    f"{1000 * reading.gc_s:.0f} ms collecting garbage; at {reading.place or '?'}"
                )


def p99(values: Sequence[float]) -> float:
    """Of few values the largest."""
    return statistics.quantiles(values, n=100)[98] if len(values) > 100 else max(values, default=0)
