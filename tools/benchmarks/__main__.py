"""`make bench`: every figure of the README's table, each beside its peer and its limit.

Each case runs ours and the peer in turn, `REPEATS` times, on the same checkpoint, dtype,
threads and machine; the figures are medians. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from profiles.checkpoints.compact import bundled_nano, expand
from service.settings.settings import PATIENT_THREADS
from tools.benchmarks import api_layer
from tools.benchmarks.checkpoint import write_random
from tools.benchmarks.ending import end_as_by_ctrl_c
from tools.benchmarks.limits import ModelBytes, read_bandwidth_bytes_s
from tools.benchmarks.native import NativeRunner
from tools.benchmarks.overload import overload_figures
from tools.benchmarks.peer import TransformersPeer
from tools.benchmarks.report import Row, median, show
from tools.benchmarks.side import Side
from tools.benchmarks.startup import seconds_to_ready
from tools.benchmarks.workload import Job, mixed, prompt, single, uniform

REPEATS = 3
PROMPT_LEN = 2048


def main() -> None:
    """Run the chosen sections and print them."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks", description=__doc__)
    sections = ("nano", "wide", "startup", "api", "overload")
    parser.add_argument("sections", nargs="*", choices=(*sections, []), help="default: all")
    chosen = parser.parse_args().sections or sections
    end_as_by_ctrl_c()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        if "nano" in chosen:
            expand(bundled_nano(), nano := Path(scratch) / "nano")
            rows += engine_rows("nano", nano, "float32")
        if "wide" in chosen:
            wide = write_random(Path(scratch) / "wide", hidden=256, num_layers=4, num_experts=8)
            for dtype in ("float32", "bfloat16"):
                rows += engine_rows("4 x 256 random", wide, dtype)
        if "startup" in chosen:
            rows.append(startup_row(Path(scratch)))
    if "api" in chosen:
        rows += api_layer.rows(REPEATS)
    if "overload" in chosen:
        rows += overload_rows()
    show(rows)


def engine_rows(name: str, checkpoint: Path, dtype: str) -> list[Row]:
    """Native against transformers: one stream, 32 of one length, 32 mixed, and one long prompt."""
    bandwidth = read_bandwidth_bytes_s()
    shape = ModelBytes.of(checkpoint, getattr(torch, dtype).itemsize)
    # Ours with the environment of the engine process; the peer as it comes.
    ours = Side(NativeRunner, checkpoint, dtype, PATIENT_THREADS)
    peer = Side(TransformersPeer, checkpoint, dtype, {})
    cases: list[tuple[str, list[Job], str]] = [
        ("1 stream", single(), ">= 2x" if name == "nano" else ""),
        ("32 x 128+128", uniform(32), ">= 3x"),
        ("32 mixed", mixed(32), ">= 3x"),
    ]
    rows = []
    for case, jobs, target in cases:
        mine, theirs = _seconds(ours, peer, jobs)
        tokens = sum(job.num_tokens for job in jobs)
        rows.append(
            Row(
                case=f"{name}, {dtype}, {case}",
                ours=tokens / mine,
                peer=tokens / theirs,
                limit=len(jobs) * bandwidth / shape.step_bytes(len(jobs)),
                unit="tok/s",
                target=target,
                note="peer: transformers generate",
            )
        )
    mine, theirs = _seconds(ours, peer, prompt(PROMPT_LEN))
    rows.append(
        Row(
            case=f"{name}, {dtype}, prompt of {PROMPT_LEN:,}",
            ours=PROMPT_LEN / mine,
            peer=PROMPT_LEN / theirs,
            unit="tok/s",
            note="peer: transformers, its first token",
        )
    )
    ours.close()
    peer.close()
    return rows


def _seconds(ours: Side, peer: Side, jobs: list[Job]) -> tuple[float, float]:
    """Medians of runs in turn, after one of each that warms up."""
    ours.run(jobs)
    peer.run(jobs)
    seconds = [(ours.run(jobs), peer.run(jobs)) for _ in range(REPEATS)]
    return median([mine for mine, _ in seconds]), median([theirs for _, theirs in seconds])


def startup_row(scratch: Path) -> Row:
    """Process start to ready on nano, after one start that fills the cache."""
    seconds_to_ready(scratch / "cache")
    times = [seconds_to_ready(scratch / "cache") for _ in range(REPEATS)]
    return Row(case="nano, start to ready", ours=median(times), unit="s", target="<= 5 s")


def overload_rows() -> list[Row]:
    """Three times what can be answered, against what can."""
    goodput, ttft = overload_figures()
    return [
        Row(case="3x overload, goodput", ours=goodput, unit="of capacity", target=">= 0.9"),
        Row(case="3x overload, TTFT p99", ours=ttft, unit="of 1x load's", target="<= 2"),
    ]


if __name__ == "__main__":
    main()
