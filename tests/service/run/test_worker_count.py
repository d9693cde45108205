"""How many API workers serve where no setting says so."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.run.worker_count import count_for, with_workers
from service.settings.settings import load

GB = 10**9


@pytest.mark.parametrize(
    ("engines", "cores", "memory", "count", "reason"),
    [
        (1, 8, 16 * GB, 1, "one engine"),
        (1, 64, 32 * GB, 1, "one engine"),
        (1, 16, 128 * GB, 2, "2 for the engine"),
        (4, 64, 512 * GB, 8, "2 for each of 4 engines"),
        (8, 128, 560 * GB, 16, "2 for each of 8 engines"),
        (4, 8, 512 * GB, 4, "8 CPU cores leave no more beside 4 engines"),
        (4, 2, 512 * GB, 1, "2 CPU cores"),
        (4, 64, 8 * GB, 3, "8 GB of memory"),
    ],
)
def test_two_for_each_engine_as_far_as_the_machine_allows(
    engines: int, cores: int, memory: int, count: int, reason: str
) -> None:
    found, why = count_for(engines, cores, memory)
    assert found == count
    assert reason in why


def launch_of(gpus: int) -> Any:
    """Of engines on this many GPUs of a large machine; 0: two engines on its CPU."""
    cpu = SimpleNamespace(num_cores=64, total_bytes=512 * GB)
    profile = SimpleNamespace(gpu="h100" if gpus else None)
    return SimpleNamespace(
        devices=({},) * (gpus or 2),
        hardware=SimpleNamespace(cpu=cpu),
        selection=SimpleNamespace(chosen=SimpleNamespace(profile=profile)),
    )


@pytest.mark.parametrize(
    ("given", "gpus", "count", "told"),
    [
        (None, 4, 8, "API workers: 8: 2 for each of 4 engines; NIM_API_WORKERS sets another"),
        (None, 1, 2, "API workers: 2: 2 for the engine; NIM_API_WORKERS sets another"),
        (None, 0, 1, "API workers: 1: the engines compute on the CPU"),
        (3, 4, 3, "API workers: 3: as NIM_API_WORKERS says"),
    ],
)
async def test_the_log_says_how_many_and_why(
    tmp_path: Path, caplog: Any, given: int | None, gpus: int, count: int, told: str
) -> None:
    caplog.set_level(logging.INFO)
    settings = load({"cache_path": tmp_path, "api_workers": given})
    assert (await with_workers(settings, launch_of(gpus))).api_workers == count
    assert told in caplog.text
    assert bool(caplog.text) == bool(told)


async def test_a_default_of_several_refuses_no_start_where_responses_stay_in_memory(
    tmp_path: Path, caplog: Any
) -> None:
    caplog.set_level(logging.INFO)
    settings = load({"cache_path": tmp_path, "responses_path": Path("/dev/null/responses")})
    assert (await with_workers(settings, launch_of(4))).api_workers == 1
    assert "several need a file of stored responses" in caplog.text
