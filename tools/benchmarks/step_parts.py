"""A decode step's kernels, put together by what they are for."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

FIRST: Final = "embed_kernel"  # of a step
DENSE, HEAD, LAUNCHES, BETWEEN = "dense products", "head", "launches", "between steps"
SAMPLING: Final = "sampling"
_ATTENTION, _EXPERTS, _ROUTER, _NORMS = "attention", "experts", "router", "norms"
_COPIES: Final = "copies"
_PRODUCTS: Final = ("gemv_kernel", "rows_kernel")
_PARTS: Final = {
    "embed_kernel": _NORMS,
    "add_norm_kernel": _NORMS,
    "decode_attention_kernel": _ATTENTION,
    "row_attention_kernel": _ATTENTION,
    "route_one_kernel": _ROUTER,
    "route_few_kernel": _ROUTER,
    "choose_kernel": _ROUTER,
    "list_kernel": _ROUTER,
    "gate_up_kernel": _EXPERTS,
    "down_kernel": _EXPERTS,
    "gate_up_grouped_kernel": _EXPERTS,
    "down_grouped_kernel": _EXPERTS,
} | dict.fromkeys(_PRODUCTS, DENSE)
PARTS: Final = (
    _EXPERTS, _ATTENTION, DENSE, HEAD, _ROUTER, _NORMS, SAMPLING, _COPIES, LAUNCHES, BETWEEN,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kernel:
    """One that the device ran; microseconds of one clock."""

    name: str
    start_us: float
    end_us: float


def parts_us(kernels: Iterable[Kernel]) -> dict[str, float]:
    """Microseconds of each part of the median step; ValueError without a whole step.

    A kernel that begins while the one before it runs, to ask for its weights, counts from that
    one's end. What nothing runs in is `launches`, or after a step's last kernel `between steps`.
    """
    steps: list[list[Kernel]] = []
    for kernel in sorted(kernels, key=lambda each: each.start_us):
        if kernel.name == FIRST:
            steps.append([])
        if steps:  # else of a step that began before
            steps[-1].append(kernel)
    if len(steps) < 2:
        raise ValueError(f"there are {len(steps)} steps that begin with {FIRST}; 2 are needed")
    found = [_of_step(step, end[0].start_us) for step, end in pairwise(steps)]
    return {part: statistics.median(each[part] for each in found) for part in PARTS}


def _of_step(kernels: list[Kernel], end_us: float) -> dict[str, float]:
    found, until_us = dict.fromkeys(PARTS, 0.0), kernels[0].start_us
    last_product = max(i for i, each in enumerate(kernels) if each.name in _PRODUCTS)
    for index, kernel in enumerate(kernels):
        found[LAUNCHES] += max(kernel.start_us - until_us, 0.0)
        part = HEAD if index == last_product else _part(kernel.name)
        found[part] += max(kernel.end_us - max(kernel.start_us, until_us), 0.0)
        until_us = max(until_us, kernel.end_us)
    found[BETWEEN] = max(end_us - until_us, 0.0)
    return found


def _part(name: str) -> str:
    if name.startswith(("Memcpy", "Memset")):
        return _COPIES
    return _PARTS.get(name, SAMPLING)
