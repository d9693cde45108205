"""CUDA graphs by size: captured once, replayed for whatever fits."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from engines.native.backends.cuda.kernels.launch import each_once

_MIN_PREFILL = 64  # tokens of the smallest graph
_VERIFIED_ALONE = 8  # rows of one sequence with drafts
_VERIFIED_ROWS = 4  # of a sequence, on average, when all have drafts
_MOST_VERIFIED_ROWS = 256
_WIDE = 256  # rows from which on doubling leaves too much of a step to padding
_LONG = 1024  # tokens from which on even half as many more do


class Graphs:
    """A captured launch for each of some sizes; on a device without graphs it is launched each
    time."""

    def __init__(self, launches: dict[int, Callable[[], None]], device: torch.device) -> None:
        """Compile and capture all, largest first; they share memory, as one runs at a time."""
        self.sizes = sorted(launches)
        self._launches = launches  # a graph does not keep the tensors that it reads and writes
        self._replays: dict[int, Callable[[], None]] = launches
        if device.type == "meta":  # nothing is computed; offline/launches.py looks at the launches
            for size in self.sizes:
                launches[size]()
        if device.type != "cuda":
            return
        self._replays = {}
        # Another engine's graphs, collected meanwhile, would spoil the one that is captured.
        gc.disable()
        try:
            self._capture(device)
        finally:
            gc.enable()

    def _capture(self, device: torch.device) -> None:
        pool, launches = torch.cuda.graph_pool_handle(), self._launches
        with torch.cuda.device(device):  # Triton launches on the current one
            for size in reversed(self.sizes):
                with each_once():  # Triton loads a kernel when it is first started
                    launches[size]()
                torch.cuda.synchronize(device)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=_capture_stream(device)):
                    launches[size]()
                self._replays[size] = graph.replay

    def run(self, size: int) -> None:
        """Replay the graph of the smallest size that holds `size`."""
        self._replays[self.size_for(size)]()

    def size_for(self, size: int) -> int:
        return min(s for s in self.sizes if s >= size)


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all graphs of a device, so that they share memory; torch's own is the first
    device's."""
    return torch.cuda.Stream(device)


def decode_sizes(max_num_seqs: int) -> list[int]:
    """The sizes of decode steps: powers of two, and from 128 on one more between two of them."""
    powers = _powers_up_to(max_num_seqs, 1)
    between = [size * 3 // 4 for size in powers if size >= _WIDE]
    sizes = sorted(powers + between)
    return [n for n in sizes if n < max_num_seqs] + [min(n for n in sizes if n >= max_num_seqs)]


def _powers_up_to(largest: int, smallest: int) -> list[int]:
    sizes = [smallest]
    while sizes[-1] < largest:
        sizes.append(2 * sizes[-1])
    return sizes


def prefill_sizes(max_num_tokens: int) -> list[int]:
    """The sizes of chunks: powers of two; from 256 on one between two of them, and from 1,024 on
    three; the last is the largest chunk."""
    powers = _powers_up_to(max_num_tokens, _MIN_PREFILL)
    sizes = powers + [size * 3 // 4 for size in powers if size > _WIDE]
    sizes += [size * eighths // 8 for size in powers if size > _LONG for eighths in (5, 7)]
    sizes.sort()
    return [n for n in sizes if n < max_num_tokens] + [max_num_tokens]


@dataclass(frozen=True, slots=True)
class StepSizes:
    """The sizes of step that are captured: rows, or tokens of a prefill."""

    decode: list[int]
    verify: list[int]  # of decode steps with drafts, or known tokens: these are rows too
    prefill: list[int]

    @property
    def most_rows(self) -> int:
        """Rows of the largest decode step, draft tokens included."""
        return max(self.decode + self.verify)


def step_sizes(
    max_num_seqs: int, max_num_tokens: int, *, has_drafts: bool = False, is_invariant: bool = False
) -> StepSizes:
    """The sizes for these numbers of sequences and prompt tokens.

    `is_invariant`: one size of each, as other sizes are other kernels, whose last bits differ;
    known answers are decoded in steps like those with drafts (passes/replay.py).
    """
    prefill = prefill_sizes(max_num_tokens)
    if is_invariant:
        rows = _powers_up_to(max(max_num_seqs, _VERIFIED_ALONE), 1)[-1:]
        return StepSizes(rows, rows, prefill[-1:])
    most = max(min(_VERIFIED_ROWS * max_num_seqs, _MOST_VERIFIED_ROWS), _VERIFIED_ALONE)
    verify = _powers_up_to(most, 2) if has_drafts else []
    return StepSizes(decode_sizes(max_num_seqs), verify, prefill)
