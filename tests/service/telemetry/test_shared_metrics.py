"""Several workers, one scrape: whichever answers it speaks for all."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service import shared_files
from service.shared_files import COUNT_BYTES, COUNT_KINDS, SharedFiles, count_file

WORKER = """
import asyncio, sys
from pathlib import Path
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from service.telemetry.collectors import EngineState
from service.telemetry.metrics import Metrics
from service.telemetry.shared import count_in_files

folder, number = Path(sys.argv[1]), int(sys.argv[2])
count_in_files(number)
metrics = Metrics("nano", lambda: EngineState(3), folder)
metrics.count_dropped("traces", 10**number)

async def main():
    engine = FakeEngine(FakeOptions(script=(1,)))
    print((await metrics.render(engine)).decode())

asyncio.run(main())
"""


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedFiles]:
    files = SharedFiles(tmp_path, 3)
    yield files
    files.close()


def run(program: str, shared: SharedFiles, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), *arguments],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        pass_fds=shared.descriptors,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def scrape(shared: SharedFiles, folder: Path, number: int) -> list[str]:
    return run(WORKER, shared, folder, str(number)).splitlines()


def test_counts_of_all_workers_add_up_and_outlive_them(shared: SharedFiles, tmp_path: Path) -> None:
    scrape(shared, tmp_path, 0)
    scrape(shared, tmp_path, 2)
    lines = scrape(shared, tmp_path, 0)  # the successor of a worker that died
    assert 'harmonium_telemetry_dropped_total{signal="traces"} 102.0' in lines
    assert 'request_success_total{model_name="nano"} 0.0' in lines
    assert 'harmonium_engine_restarts_total{model="nano"} 3.0' in lines
    assert len(lines) == len(set(lines))


def test_what_the_workers_share_takes_no_room_on_a_disk(
    shared: SharedFiles, tmp_path: Path
) -> None:
    scrape(shared, tmp_path, 1)
    counts = {count_file(kind, n) for kind in COUNT_KINDS for n in range(3)}
    assert {path.name for path in tmp_path.iterdir()} == {
        *counts,
        "connections",
        "limits",
        "routes",
    }
    assert all(path.is_symlink() for path in tmp_path.iterdir())


@pytest.mark.parametrize("has_memory", [True, False], ids=["memory", "files"])
def test_every_block_of_what_is_shared_is_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_memory: bool
) -> None:
    """A block that is missing would be a SIGBUS when the disk is full."""
    if not has_memory:
        monkeypatch.delattr(os, "memfd_create")
    files = SharedFiles(tmp_path, 3)
    run(FULL, files, tmp_path, "-1")  # which makes them grow
    stats = [os.fstat(descriptor) for descriptor in files.descriptors]
    assert max(stat.st_size for stat in stats) > COUNT_BYTES
    assert all(stat.st_blocks * 512 >= stat.st_size > 0 for stat in stats)
    files.close()


def test_room_is_reserved_where_the_system_has_no_call_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    size = COUNT_BYTES + mmap.PAGESIZE
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"begun")
        file.flush()
        shared_files.reserve(file.fileno(), size)
        stat = os.fstat(file.fileno())
        assert stat.st_size == size
        assert stat.st_blocks * 512 >= size
        file.seek(0)
        assert file.read(6) == b"begun\0"


FULL = """
import logging, resource, sys
from pathlib import Path
from service.telemetry.metrics import Metrics
from service.telemetry.shared import count_in_files

count_in_files(0)
logging.basicConfig(stream=sys.stdout)
metrics = Metrics("nano", shared_folder=Path(sys.argv[1]))
most = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (most, -1))
for number in range(3000):
    metrics.count_auth_failure(f"reason-{number:0100}")
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
for _ in range(7):
    metrics.count_auth_failure("afterwards")
print(metrics._scraped.get_sample_value("harmonium_auth_failures_total", {"reason": "afterwards"}))
"""


def test_a_request_survives_a_count_that_cannot_be_written(
    shared: SharedFiles, tmp_path: Path
) -> None:
    """What a worker counts in cannot grow: its memory is full."""
    *told, counted = run(FULL, shared, tmp_path, "0").splitlines()
    assert ["Metrics cannot be written" in line for line in told] == [True]  # not for each
    assert counted == "7.0"  # it counts again as soon as there is room
