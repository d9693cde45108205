"""Series that several worker processes count together: any of them answers a scrape for all.

Each worker counts in files of its own in one folder. The files bear the worker's number, not
its process id: the successor of a worker that died continues counting where it ended, and the
folder does not grow with restarts.

A gauge must say what its sum over the workers means (`multiprocess_mode="livesum"` for what
runs now). Collectors that compute their values when asked work as ever: they are asked in the
worker that was scraped, and must not add up over workers.
"""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, values
from prometheus_client.multiprocess import MultiProcessCollector


def count_in_files(worker: int) -> None:
    """Keep the series of every Metrics made from now on in the files of this worker.

    Called once in a process, whose environment names the folder in PROMETHEUS_MULTIPROC_DIR.
    """
    values.ValueClass = values.MultiProcessValue(lambda: worker)  # type: ignore[no-untyped-call]


def registry_of_all(folder: Path) -> CollectorRegistry:
    """A registry that sums the series of all workers from their files."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))  # type: ignore[no-untyped-call]
    return registry


def forget_live(folder: Path, worker: int) -> None:
    """Drop the gauges of a worker that died; its counters stay."""
    for path in folder.glob(f"gauge_live*_{worker}.db"):
        path.unlink(missing_ok=True)
