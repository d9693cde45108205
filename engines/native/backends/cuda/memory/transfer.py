"""Copies between host and device without waiting."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Transfer:
    """Copies to and from one device; on a CPU, through Triton's interpreter, plain ones."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def upload(self, values: list[int] | list[float], dtype: torch.dtype = torch.int32) -> Tensor:
        host = torch.tensor(values, dtype=dtype)
        return self.to_device(host)

    def to_device(self, host: Tensor, device: torch.device | None = None) -> Tensor:
        """Copy without waiting, to another device if one is given: the allocator of pinned memory
        keeps it until the copy is done."""
        return self.pinned(host).to(device or self.device, non_blocking=True)

    def fill(self, tensors: Iterable[Tensor], host: Tensor) -> None:
        """Copy into tensors like it, each on a device of its own, without waiting."""
        host = self.pinned(host)
        for tensor in tensors:
            tensor.copy_(host, non_blocking=True)

    def pinned(self, host: Tensor) -> Tensor:
        """The same where the device copies from by itself."""
        return host.pin_memory() if self.device.type == "cuda" else host

    def to_host(self, values: Tensor) -> Tensor:
        """A copy on the host, whole once `done` is."""
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=self.device.type == "cuda")
        return host.copy_(values, non_blocking=True)

    def done(self) -> torch.cuda.Event | None:
        """An event behind everything that is enqueued now."""
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event
