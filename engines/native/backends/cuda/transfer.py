"""Copies between host and device that nobody waits for."""

from __future__ import annotations

import torch
from torch import Tensor


class Transfer:
    """Copies to and from one device; on a CPU, through Triton's interpreter, plain ones."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def upload(self, values: list[int] | list[float], dtype: torch.dtype = torch.int32) -> Tensor:
        """The numbers on the device."""
        host = torch.tensor(values, dtype=dtype)
        return self.to_device(host)

    def to_device(self, host: Tensor) -> Tensor:
        """Copy without waiting: the allocator of pinned memory keeps it until the copy is done."""
        if self.device.type == "cuda":
            host = host.pin_memory()
        return host.to(self.device, non_blocking=True)

    def to_host(self, values: Tensor) -> Tensor:
        """A copy on the host, whole once `done` is."""
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=self.device.type == "cuda")
        return host.copy_(values, non_blocking=True)

    def done(self) -> torch.cuda.Event | None:
        """An event behind everything that is enqueued now."""
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record()
        return event
