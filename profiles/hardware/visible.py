"""Which of a machine's GPUs CUDA shows to a process: NVML lists them all the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from profiles.hardware.machine import Gpu, Hardware

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible(machine: Hardware, names: str | None) -> Hardware:
    """Return the machine with the GPUs CUDA_VISIBLE_DEVICES names, in that order; all for None.

    As in the CUDA C++ Programming Guide: numbers or the beginnings of UUIDs, and what follows one
    that names no GPU is hidden too. Numbers count along the PCI bus, as CUDA's do where all boards
    are alike.
    """
    if names is None or not machine.gpus:
        return machine
    shown = tuple(_named(machine.gpus, [name.strip() for name in names.split(",")]))
    if not shown:
        reason = f"{VARIABLE} is {names!r}, which hides {machine.summary}"
        return replace(machine, gpus=(), no_gpu_reason=reason)
    return replace(machine, gpus=shown)


def _named(gpus: tuple[Gpu, ...], names: list[str]) -> Iterator[Gpu]:
    for name in names:
        found = next((gpu for gpu in gpus if _is(gpu, name)), None)
        if found is None:
            return
        yield found


def _is(gpu: Gpu, name: str) -> bool:
    return gpu.index == int(name) if name.isdecimal() else bool(name) and gpu.uuid.startswith(name)
