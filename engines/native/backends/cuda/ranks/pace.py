"""Whether one of the GPUs that share each layer is slower than the others: all wait for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from statistics import median
from typing import Final

import torch

_SLOW: Final = 1.3  # times as long as the fastest takes
_BYTES: Final = 256 * 1024**2
# In a row: copies one by one take 128 µs on an H200 with another program on it too; these take 275.
_COPIES: Final = 100
_ROUNDS: Final = 3

log = logging.getLogger(__name__)


def tell_slow(devices: Sequence[torch.device]) -> None:
    """Log each GPU that copies its own memory much slower than the fastest does."""
    times = [median(_rounds_s(device)) for device in devices]
    torch.cuda.empty_cache()  # the room of the K/V cache is measured after this
    for device, took_s in zip(devices, times, strict=True):
        if took_s > _SLOW * min(times):
            log.warning(
                "GPU %d moves %.0f GB/s and the fastest of its ranks %.0f: each step waits for it."
                " Another program may use it, or heat or a power limit slow it (nvidia-smi -q -d"
                " PERFORMANCE). Select other GPUs (CUDA_VISIBLE_DEVICES) or serve with tp 1",
                device.index, *(2 * _BYTES / s / 1e9 for s in (took_s, min(times))),
            )  # fmt: skip


def _rounds_s(device: torch.device) -> list[float]:
    """Seconds of a copy, by round: a GPU that idled raises its clocks in the first."""
    with torch.cuda.device(device):
        source, copy = (torch.empty(_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
        times: list[float] = []
        for _ in range(_ROUNDS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(_COPIES):
                copy.copy_(source)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3 / _COPIES)
    return times
