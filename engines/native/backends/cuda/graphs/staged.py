"""One step's graphs on several devices: of a model's stages, in turn, or of ranks, at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from torch import Tensor

from engines.native.backends.cuda.graphs.captured import Graphs


class StepGraphs(Protocol):
    """The graphs of steps on all devices, by the step's size."""

    @property
    def sizes(self) -> list[int]: ...

    def run(self, size: int, *, is_adapted: bool = False) -> None:
        """Enqueue the step of the smallest size that holds `size`; with adapters, if it has rows
        that ask for one."""
        ...


class KeyedGraphs:
    """Graphs of steps without adapters, and of the same with them; implements StepGraphs."""

    def __init__(self, plain: StepGraphs, adapted: StepGraphs) -> None:
        self._plain, self._adapted = plain, adapted

    @property
    def sizes(self) -> list[int]:
        return self._plain.sizes

    def run(self, size: int, *, is_adapted: bool = False) -> None:
        (self._adapted if is_adapted else self._plain).run(size)


class StagedGraphs:
    """The graphs of each stage, for the same sizes of step; implements StepGraphs."""

    def __init__(self, graphs: Sequence[Graphs], residuals: Sequence[Tensor]) -> None:
        """`residuals`: each stage's residual stream (rows, hidden), which the next one takes."""
        self._first, *self._others = graphs
        self._links = [*pairwise(residuals)]

    @property
    def sizes(self) -> list[int]:
        return self._first.sizes

    def run(self, size: int, *, is_adapted: bool = False) -> None:
        """Enqueue the step of the smallest size that holds `size` on every stage."""
        assert not is_adapted
        self._first.run(size)
        for graphs, (of_one, of_next) in zip(self._others, self._links, strict=True):
            of_next[:size].copy_(of_one[:size], non_blocking=True)
            graphs.run(size)


class RankGraphs:
    """The same step on every rank, whose exchanges hold them together; implements StepGraphs."""

    def __init__(self, graphs: Sequence[Graphs]) -> None:
        self._graphs = graphs

    @property
    def sizes(self) -> list[int]:
        return self._graphs[0].sizes

    def run(self, size: int, *, is_adapted: bool = False) -> None:
        """Enqueue it on every rank; the host waits for nothing between two, as they would then wait
        for each other."""
        assert not is_adapted
        for graphs in self._graphs:
            graphs.run(size)
