"""The process that compiles the kernels of one start, in forks of its own: artefact/ahead.py.

The first line of stdin says what is wanted; each line of stdout how much of it there is. It and its
forks end with the engine's process, however that ends.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from triton.backends.nvidia import driver as nvidia

from engines.native.backends.cuda.artefact import compiled_kernels
from engines.native.backends.cuda.card import Card
from engines.native.backends.cuda.choices.of_card import CardChoices
from engines.native.backends.cuda.offline.compiling import build_launchers, compiled, compiling_for
from engines.native.backends.cuda.offline.launches import DistinctLaunch, Wanted, launches_of
from engines.native.config import ModelConfig
from engines.native.kv_pool import FP8

_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_MOST_JOBS: Final = 32  # each takes some 0.3 GB
# By the seconds that they take: the longest are begun first.
_LONGEST: Final = (
    "hopper_attention_kernel",
    "gate_up_grouped_kernel",
    "down_grouped_kernel",
    "prefill_attention_kernel",
    "rows_kernel",
    "decode_attention_kernel",
)

_launches: list[DistinctLaunch] = []  # of this process and its forks

log = logging.getLogger(__name__)


def main() -> None:
    _end_with(os.getppid())
    asked: dict[str, Any] = json.loads(sys.stdin.readline())
    card = Card(**{**asked["card"], "capability": tuple(asked["card"]["capability"])})
    model = ModelConfig.from_dir(Path(asked["model_dir"]))
    kv_dtype = {"kv_dtype": FP8} if asked["kv_dtype"] == "fp8" else {}
    folder, jobs = Path(asked["folder"]), min(len(os.sched_getaffinity(0)), _MOST_JOBS)
    with compiled_kernels.cache_at(folder), compiling_for(card.architecture):
        _launches[:] = launches_of(
            model,
            CardChoices(card),
            is_packed=asked["is_packed"],
            wanted=Wanted(**asked["sizes"]),
            **kv_dtype,
        )
        _launches.sort(key=_seniority)
        compile_all(jobs)


def compile_all(jobs: int) -> None:
    """Compile all launches, a fork for each job, and print how many there are."""
    forks = get_context("fork")
    with ProcessPoolExecutor(jobs, forks, _end_with, (os.getpid(),)) as pool:
        begun = [pool.submit(_compile, index) for index in range(len(_launches))]
        for number, done in enumerate(as_completed(begun)):
            if (error := done.exception()) is not None:  # its launch will raise it
                log.warning("A kernel was not compiled ahead: %r", error)
            print(f"{number + 1} of {len(begun)}", flush=True)


def _seniority(launch: DistinctLaunch) -> int:
    return _LONGEST.index(launch.name) if launch.name in _LONGEST else len(_LONGEST)


def _compile(index: int) -> None:
    kernel = compiled(_launches[index])
    if hasattr(nvidia, "make_launcher"):  # before Triton 3.7 each signature has its own
        with suppress(subprocess.CalledProcessError, OSError):
            build_launchers([kernel])


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it went meanwhile
        os._exit(1)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    main()
