"""Several workers, one scrape: whichever answers it speaks for all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from service.telemetry.shared import forget_live

WORKER = """
import asyncio, sys
from pathlib import Path
from prometheus_client import Gauge
from engines.fake.engine import FakeEngine
from engines.fake.sequence import FakeOptions
from service.telemetry.collectors import EngineState
from service.telemetry.metrics import Metrics
from service.telemetry.shared import count_in_files

folder, number = Path(sys.argv[1]), int(sys.argv[2])
count_in_files(number)
metrics = Metrics("nano", lambda: EngineState(3), folder)
running = Gauge("live", "Now.", registry=metrics.registry, multiprocess_mode="livesum")
metrics.count_dropped("traces", 10**number)
running.set(10**number)

async def main():
    engine = FakeEngine(FakeOptions(script=(1,)))
    print((await metrics.render(engine)).decode())

asyncio.run(main())
"""


def scrape(folder: Path, number: int) -> list[str]:
    return subprocess.run(
        [sys.executable, "-c", WORKER, str(folder), str(number)],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()


def test_counts_of_all_workers_add_up_and_outlive_them(tmp_path: Path) -> None:
    scrape(tmp_path, 0)
    scrape(tmp_path, 2)
    lines = scrape(tmp_path, 0)  # the successor of a worker that died
    assert 'harmonium_telemetry_dropped_total{signal="traces"} 102.0' in lines
    assert "live 101.0" in lines
    assert 'request_success_total{model_name="nano"} 0.0' in lines
    assert 'harmonium_engine_restarts_total{model="nano"} 3.0' in lines
    assert len(lines) == len(set(lines))
    num_files = len(list(tmp_path.iterdir()))
    scrape(tmp_path, 0)
    assert len(list(tmp_path.iterdir())) == num_files
    forget_live(tmp_path, 2)
    lines = scrape(tmp_path, 0)
    assert 'harmonium_telemetry_dropped_total{signal="traces"} 104.0' in lines
    assert "live 1.0" in lines


FULL = """
import logging, resource, sys
from pathlib import Path
from service.telemetry.metrics import Metrics
from service.telemetry.shared import count_in_files

count_in_files(0)
logging.basicConfig(stream=sys.stdout)
metrics = Metrics("nano", shared_folder=Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, -1))
for number in range(3000):
    metrics.count_auth_failure(f"reason-{number:0100}")
"""


def test_a_request_survives_a_count_that_cannot_be_written(tmp_path: Path) -> None:
    """The file of a worker's counts cannot grow: the disk is full."""
    found = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.count("Metrics cannot be written") == 1  # once a minute, not for each
