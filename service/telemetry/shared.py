"""Series that several worker processes count together: any of them answers a scrape for all.

Each worker counts in files of its own in one folder (service/shared_files.py). The files bear the
worker's number, not its process id: the successor of a worker that died continues counting where it
ended, and there are no more files after a restart. A worker that is the only one counts in its own
memory.

Counters and histograms are shared. Collectors that compute their values when asked work as ever:
they are asked in the worker that was scraped, and must not add up over workers.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from prometheus_client import CollectorRegistry, values
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector

from service.shared_files import reserve

_MOST_BESIDE_KEY = 32  # bytes of an entry: its length, value, time and padding


class ReservedDict(MmapedDict):
    """The library's file of counts, which grows only where its blocks can be reserved.

    A count that finds no room raises OSError, and changes nothing: the next one tries again.
    """

    def _init_value(self, key: str) -> None:
        most = self._used + len(key.encode()) + _MOST_BESIDE_KEY
        while most > self._capacity:
            size = 2 * self._capacity
            reserve(self._f.fileno(), size)
            self._m = mmap.mmap(self._f.fileno(), size)
            self._capacity = size
        super()._init_value(key)  # type: ignore[no-untyped-call]


def count_in_files(worker: int) -> None:
    """Keep the series of every Metrics made from now on in the files of this worker.

    Called once in a process, whose environment names the folder in PROMETHEUS_MULTIPROC_DIR.
    """
    vars(values)["MmapedDict"] = ReservedDict
    values.ValueClass = values.MultiProcessValue(lambda: worker)  # type: ignore[no-untyped-call]


def registry_of_all(folder: Path) -> CollectorRegistry:
    """A registry that sums the series of all workers from their files."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))  # type: ignore[no-untyped-call]
    return registry
