"""Kill one of several engines amid streams: which answers come whole, and how long they wait."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from benchmarks.gpu_disk import prompt_of
from benchmarks.replicas import PROMPT, Replicas, request_of, served
from engines.recovery.guarded import GuardedEngine

STREAMS: Final = 64
ANSWER, KILL_AFTER = 384, 96  # tokens


@dataclass(slots=True)
class _Stream:
    """One answer as it was read."""

    token_ids: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)

    def wait_from(self, moment: float) -> float:
        """Seconds between two events, the most from a moment on; 0 if none came."""
        pairs = pairwise(self.arrivals)
        return max((after - before for before, after in pairs if after > moment), default=0.0)


@dataclass(slots=True)
class _Death:
    """When an engine process was killed, and how many tokens of each answer were shown."""

    at: float = 0.0
    pid: int = 0
    shown: list[int] = field(default_factory=list)


async def death(started: Replicas, vocab_size: int) -> dict[str, Any]:
    """Ask for the same answers four times, the third while one engine process is killed."""
    async with served([supervisor.client() for supervisor in started.supervisors]) as engine:
        streams = [await _answers(engine, vocab_size, f"run {n}") for n in range(2)]
        killed = _Death()
        streams.append(await _answers(engine, vocab_size, "run 2", started, killed))
        undisturbed, again, disturbed = streams
        while started.supervisors[0].pid in {None, killed.pid}:
            await asyncio.sleep(0.01)
        restarted_s = time.perf_counter() - killed.at
        last = await _answers(engine, vocab_size, "run 3")
    waits = sorted(stream.wait_from(killed.at) for stream in disturbed)
    return {
        "streams": STREAMS,
        "answer": ANSWER,
        "tokens_shown_before": [min(killed.shown), max(killed.shown)],
        "whole": sum(len(s.token_ids) == ANSWER for s in disturbed),
        "equal_undisturbed": _equal(undisturbed, again),
        "equal_when_killed": _equal(undisturbed, disturbed),
        "equal_after_the_restart": _equal(undisturbed, last),
        "wait_ms": {
            "longest": round(waits[-1] * 1e3, 1),
            "median": round(statistics.median(waits) * 1e3, 1),
        },
        "ready_again_s": round(restarted_s, 2),
    }


def _equal(one: Sequence[_Stream], other: Sequence[_Stream]) -> dict[str, Any]:
    """Whole answers that are the same, the greedy ones and the drawn; and where others part."""
    parted = [_parting(a.token_ids, b.token_ids) for a, b in zip(one, other, strict=True)]
    return {
        "greedy": parted[::2].count(None),
        "drawn": parted[1::2].count(None),
        "parted_at": sorted(at for at in parted if at is not None),
    }


def _parting(one: list[int], other: list[int]) -> int | None:
    """The first token that is another; None for equal answers."""
    if one == other:
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


async def _answers(
    engine: GuardedEngine, vocab_size: int, salt: str, started: Replicas | None = None,
    killed: _Death | None = None,
) -> list[_Stream]:  # fmt: skip
    """Greedy and drawn answers in turn; `started`: its first engine is killed in the middle."""
    streams = [_Stream() for _ in range(STREAMS)]

    async def read(number: int) -> None:
        request = request_of(f"d{number}", prompt_of(number, PROMPT, vocab_size), ANSWER, number)
        if number % 2 == 0:
            request = replace(request, sampling=replace(request.sampling, temperature=0.0))
        async for event in engine.generate(replace(request, cache_salt=salt)):
            streams[number].arrivals.append(time.perf_counter())
            streams[number].token_ids += event.token_ids

    async def kill() -> None:
        assert started is not None
        assert killed is not None
        while min(len(stream.token_ids) for stream in streams) < KILL_AFTER:
            await asyncio.sleep(0.002)
        pid = started.supervisors[0].pid
        assert pid is not None
        killed.shown = [len(stream.token_ids) for stream in streams]
        killed.pid, killed.at = pid, time.perf_counter()
        os.kill(pid, signal.SIGKILL)

    tasks = [read(number) for number in range(STREAMS)]
    await asyncio.gather(*tasks, *([kill()] if started is not None else []))
    return streams
