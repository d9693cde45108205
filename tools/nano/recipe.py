"""Train nano anew, in one go: `python -m tools.nano.recipe`.

Every step's words go to the terminal and to recipe.log. A run that SIGTERM or `--most-seconds`
ends saves its state and exits with 75; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from profiles.checkpoints.compact import bundled_nano
from tools.nano.train import STOPPED

_LOG = "recipe.log"


def commands(
    out: Path,
    further_seconds: float,
    processes: int,
    train_seconds: float = 0.0,
    training: Sequence[str] = (),
    dialogues: int = 1200,
) -> dict[str, list[str]]:
    """Return the steps by name, in their order: modules of this folder with their arguments."""
    packed, further = str(out / "packed"), str(out / "further")
    longer = ["--source", packed, "--out", further, "--seconds", str(further_seconds), *training]
    measured = ["--source", packed, "--out", str(out / "report.md"), "--dialogues", str(dialogues)]
    timed = ["--seconds", str(train_seconds)] if train_seconds else []
    return {
        "train": ["train", "--out", str(out), *timed, *training],
        "pack": ["pack", "--state", str(out / "state.pt"), "--out", packed],
        "further": ["further", *longer],
        "pack again": ["pack", "--state", str(out / "further" / "state.pt"), "--out", packed],
        "report": ["report", *measured, "--processes", str(processes)],
    }


def run(out: Path, steps: dict[str, list[str]], most_seconds: float) -> int:
    """Run the steps that are not done; return the exit status of the last one that ran."""
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + most_seconds
    with (out / _LOG).open("a") as log:
        for name, command in steps.items():
            done = out / f"{name.replace(' ', '-')}.done"
            if done.exists():
                continue
            began = time.monotonic()
            status = _run(["-m", f"tools.nano.{command[0]}", *command[1:]], log, end - began)
            _tell(log, f"{name}: exit status {status} after {time.monotonic() - began:.0f} s\n")
            if status:
                return status
            done.touch()
    return 0


def _run(arguments: Sequence[str], log: TextIO, seconds: float) -> int:
    """Run Python, copying what it says; SIGTERM and the end of the time are passed on to it."""
    with subprocess.Popen(
        [sys.executable, "-u", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        numbers = (signal.SIGTERM, signal.SIGALRM)
        before = [signal.signal(number, lambda *_: child.terminate()) for number in numbers]
        signal.setitimer(signal.ITIMER_REAL, min(max(seconds, 0.001), 10**6))
        assert child.stdout
        for line in child.stdout:
            _tell(log, line)
        status = child.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    return STOPPED if status == -signal.SIGTERM else status


def _tell(log: TextIO, text: str) -> None:
    for target in (log, sys.stdout):
        target.write(text)
        target.flush()


def main() -> None:
    """Read the command line, run the recipe, and ship what reaches the bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/nano"))
    parser.add_argument("--train-seconds", type=float, default=0.0, help="in place of its steps")
    parser.add_argument("--further-seconds", type=float, default=600)
    parser.add_argument("--workers", help="processes that write dialogues")
    parser.add_argument("--no-graphs", action="store_true", help="run kernels one by one")
    parser.add_argument("--most-seconds", type=float, default=10**6, help="of this call")
    parser.add_argument("--processes", type=int, default=1, help="how many measure at once")
    parser.add_argument("--dialogues", type=int, default=1200, help="to measure with")
    arguments = parser.parse_args()
    out = arguments.out
    training = ["--workers", arguments.workers] if arguments.workers else []
    training += ["--no-graphs"] if arguments.no_graphs else []
    steps = commands(
        out, arguments.further_seconds, arguments.processes, arguments.train_seconds, training,
        arguments.dialogues,
    )  # fmt: skip
    if status := run(out, steps, arguments.most_seconds):
        sys.exit(status)
    for path in (out / "packed").iterdir():
        shutil.copy(path, bundled_nano())
    shutil.copy(out / "report.md", "docs/nano.md")


if __name__ == "__main__":
    main()
