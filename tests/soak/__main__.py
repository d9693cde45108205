"""`make soak`: mixed traffic and faults for two hours; nothing may grow, hang, leak or be lost.

Two API workers and two engines. Streams, cancels, bad bodies, tools, long prompts, background
responses, slow readers and reconnects, while engines, workers and the server are killed, stopped
and rolled, readers stop, the disk fills and (scripted engine) an engine is poisoned, in turn.
Every request must be answered: whole, or with an error in the API's shape; a connection may break
only if its process was killed. The last line is one JSON document; `--page NAME` writes it with
the samples to NAME.json, and a page with plots to NAME.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.faults.small_disk import SmallDisk, why_not
from tests.soak.faults import GENTLE_SHARE, Faults, left_in, shown
from tests.soak.page import drawn
from tests.soak.server import Sample, SoakServer, processes_of
from tests.soak.traffic import FORGERIES, WORDS, Place, Tally, send_until
from tools.benchmarks.ending import end_as_by_ctrl_c

NUM_CLIENTS: Final = 12
SAMPLE_EVERY_S: Final = 5.0
FAULT_EVERY_S: Final = 60.0
MOST_SAMPLES: Final = 240  # that are kept
DISK_BYTES: Final = 400 << 20
_ON_DISK: Final = "SOAK_DISK"  # the folder of the small disk, for the program that runs on it
MOST_GROWTH: Final = {  # of all processes, from the second quarter to the last (figures)
    "server_mb": 24.0,
    "engines_mb": 64.0,
    "files": 6.0,
    "threads": 4.0,
    "threads_in_all": 14.0,  # pools of up to 6 threads a process fill up as it gets older
    "sockets": 6.0,
    "disk_mb": 8.0,
}


@dataclass
class Soak:
    """What was seen."""

    tally: Tally = field(default_factory=Tally)
    samples: list[Sample] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # of requests that had ended, at each

    def show_sample(self, sample: Sample) -> None:
        self.samples.append(sample)
        self.counts.append(self.tally.outcomes.total())
        parts = ", ".join(f"{name} {mb:.0f}" for name, mb in sample.memory_mb.items())
        print(
            f"{sample.at_s:6.0f} s  {sample.all_mb:6.0f} MB ({parts})  {sample.files} files, "
            f"{sample.threads} threads, {sample.sockets} sockets  requests "
            f"{self.tally.outcomes.total()}, unanswered {len(self.tally.unanswered)}, "
            f"leaks {len(self.tally.leaks)}",
            flush=True,
        )


async def run(soak: Soak, faults: Faults, seconds: float) -> None:
    """Let the clients send and do the faults; returns when the last answer has come."""
    end = asyncio.Event()
    words = (*WORDS, *FORGERIES) if faults.server.engine == "scripted" else WORDS
    clients = [
        asyncio.create_task(send_until(end, faults.place, seed, soak.tally, words))
        for seed in range(NUM_CLIENTS)
    ]
    measuring = asyncio.create_task(_measure(soak, faults))
    doing = asyncio.create_task(faults.do(seconds))
    await asyncio.wait([doing, measuring], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in (doing, measuring):
        if task.done():
            task.result()  # which failed, for neither ends
    end.set()
    doing.cancel()
    await asyncio.gather(*clients)
    measuring.cancel()
    await asyncio.wait([measuring, doing])


async def _measure(soak: Soak, faults: Faults) -> None:
    while True:
        at_s = time.monotonic() - faults.begun_s
        sample = await asyncio.to_thread(faults.server.sample, at_s, is_full=faults.is_full)
        soak.show_sample(sample)
        await asyncio.sleep(SAMPLE_EVERY_S)


def growth(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> float:
    """From the second quarter to the last, by what three of four samples of each stay below.

    Not by the median: a process that has just been started again has little.
    """
    found = [held for sample in samples if sample.is_whole and (held := value(sample)) is not None]
    quarter = max(1, len(found) // 4)
    before, after = (
        sorted(part or [0.0])[3 * len(part) // 4]
        for part in (found[quarter : 2 * quarter], found[-quarter:])
    )
    return round(after - before, 1)


def figures(soak: Soak, faults: Faults, seconds: float) -> dict[str, Any]:
    """What the last line says."""
    tally, samples, server = soak.tally, soak.samples, faults.server
    gentle = [sample for sample in samples if sample.at_s > (1 - GENTLE_SHARE) * seconds]
    full = gentle[len(gentle) // 2 :]  # K/V caches and pools of threads have filled up since a kill
    return {
        "requests": tally.outcomes.total() + len(tally.unanswered),
        "outcomes": dict(tally.outcomes.most_common()),
        "unanswered": len(tally.unanswered),
        "markup_leaks": len(tally.leaks),
        "faults": shown(faults.done),
        "failed_rolls": sum(code != 0 for code in faults.exit_codes),
        "ready_again_after_s": faults.starts_s,
        "running_at_the_end": server.metric("harmonium_engine_running_requests"),
        "waiting_at_the_end": server.metric("harmonium_engine_waiting_requests"),
        "kv_use_at_the_end": server.metric("harmonium_engine_kv_usage_ratio"),
        "tracebacks": server.log.read_text().count("Traceback (most recent call last)"),
        "memory_mb": [round(samples[0].all_mb, 1), round(samples[-1].all_mb, 1)],
        "server_mb_growth": growth(gentle, lambda sample: sample.server_mb),
        "engines_mb_growth": growth(full, lambda sample: sample.engines_mb),
        "files_growth": growth(samples, lambda sample: sample.files),
        "threads_growth": growth(full, lambda sample: sample.threads),
        "threads_in_all_growth": growth(samples, lambda sample: sample.threads),
        "sockets_growth": growth(samples, lambda sample: sample.sockets),
        "disk_mb_growth": growth(samples, lambda sample: sample.disk_mb),
    }


ZEROS: Final = (
    *("unanswered", "markup_leaks", "failed_rolls", "running_at_the_end", "waiting_at_the_end"),
    *("tracebacks", "exit_code", "processes_left", "folders_left"),
)


def complaints(found: dict[str, Any]) -> list[str]:
    """What must not be, and was."""
    wrong = [f"{name} is {found[name]}" for name in ZEROS if found[name] != 0]
    for name, most in MOST_GROWTH.items():
        if found[f"{name}_growth"] > most:
            wrong.append(f"{name} grew by {found[f'{name}_growth']}")
    return wrong


def main() -> int:
    """Soak, print the figures, and fail if anything was not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--engine", choices=("scripted", "nano"), default="scripted")
    parser.add_argument("--fault-every", type=float, default=FAULT_EVERY_S)
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    if arguments.page:
        arguments.page.parent.mkdir(parents=True, exist_ok=True)
    end_as_by_ctrl_c()
    if arguments.page:
        arguments.page.parent.mkdir(parents=True, exist_ok=True)  # before hours are spent
    if given := os.environ.get(_ON_DISK):
        return _soak(arguments, Path(given), has_disk=True)
    with tempfile.TemporaryDirectory() as folder:
        if reason := why_not():
            print(f"no disk is filled: {reason}")
            return _soak(arguments, Path(folder), has_disk=False)
        return _on_disk(Path(folder))


def _on_disk(folder: Path) -> int:
    """Run again in a mount namespace of its own, whose small disk only it and its servers see."""
    disk = SmallDisk(folder, num_bytes=DISK_BYTES)
    os.environ[_ON_DISK] = str(folder)
    command = [*disk.command, sys.executable, "-m", "tests.soak", *sys.argv[1:]]
    with subprocess.Popen(command, start_new_session=True) as again:
        try:
            return again.wait()
        except KeyboardInterrupt:
            again.terminate()
            raise


def _soak(arguments: argparse.Namespace, folder: Path, *, has_disk: bool) -> int:
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        soak = Soak()
        server = SoakServer(arguments.engine, folder, Path(log.name))
        every_s = arguments.fault_every
        faults = Faults(server, soak.tally, Place(server.url), every_s, has_disk)
        try:
            faults.starts_s.append(round(server.wait_for_ready(), 1))
            faults.begun_s = time.monotonic()
            asyncio.run(run(soak, faults, arguments.seconds))
            faults.server.wait_for_ready()
            faults.server.wait_for_idle()
            found = figures(soak, faults, arguments.seconds)
        finally:
            *_, exit_code = [one.stop() for one in server.family]
        if arguments.page:
            arguments.page.with_suffix(".log").write_bytes(Path(log.name).read_bytes())
    found |= {
        "engine": arguments.engine,
        "seconds": arguments.seconds,
        "exit_code": exit_code,
        "processes_left": len(processes_of({one.session for one in server.family})),
        "folders_left": len(left_in(folder)),
    }
    for line in [*soak.tally.unanswered[:10], *soak.tally.leaks[:10], *complaints(found)]:
        print(f"WRONG: {line}")
    print(json.dumps(found))
    if arguments.page:
        _write(arguments.page, recorded(found, soak, faults.done))
    return 1 if complaints(found) else 0


def recorded(found: dict[str, Any], soak: Soak, done: list[tuple[float, str]]) -> dict[str, Any]:
    """The figures, and some of the samples."""
    every = max(1, len(soak.samples) // MOST_SAMPLES)
    rows: list[dict[str, Any]] = []
    before_s, num_before = 0.0, 0
    for sample, num in list(zip(soak.samples, soak.counts, strict=True))[::every]:
        per_s = (num - num_before) / max(sample.at_s - before_s, 1.0)
        before_s, num_before = sample.at_s, num
        row = {name: getattr(sample, name) for name in ("files", "threads", "sockets", "disk_mb")}
        memory_mb = {name: round(mb, 1) for name, mb in sample.memory_mb.items()}
        rows.append(
            {"at_s": round(sample.at_s, 1), "memory_mb": memory_mb}
            | row
            | {"requests_per_s": round(per_s, 2)}
        )
    return found | {"done": done, "samples": rows}


def _write(page: Path, result: dict[str, Any]) -> None:
    text = json.dumps(result, separators=(",", ":"))
    page.with_suffix(".json").write_text(text.replace('{"at_s"', '\n{"at_s"') + "\n")
    page.with_suffix(".svg").write_text(drawn(result), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
