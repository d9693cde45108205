"""One step's graphs on each of a model's stages, run in turn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from engines.native.backends.cuda.graphs.captured import Graphs


class StagedGraphs:
    """The graphs of each stage, for the same sizes of step."""

    def __init__(self, graphs: Sequence[Graphs], residuals: Sequence[Tensor]) -> None:
        """`residuals`: each stage's residual stream (rows, hidden), which the next one takes."""
        self._first, *self._others = graphs
        self._links = [*pairwise(residuals)]

    @property
    def sizes(self) -> list[int]:
        return self._first.sizes

    def run(self, size: int) -> None:
        """Enqueue the step of the smallest size that holds `size` on every stage."""
        self._first.run(size)
        for graphs, (of_one, of_next) in zip(self._others, self._links, strict=True):
            of_next[:size].copy_(of_one[:size], non_blocking=True)
            graphs.run(size)
