"""A model shared out among ranks: each GPU has some heads and columns of every layer.

One thread drives all GPUs. A step is a graph on each; exchanges between the graphs add up what the
ranks have computed (kernels/exchange.py), and the host sends nothing but the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from engines.native.backends.cuda.graphs.captured import Graphs
from engines.native.backends.cuda.graphs.staged import RankGraphs
from engines.native.backends.cuda.passes.stages import Stage
from engines.native.backends.cuda.ranks.exchange import Links
from engines.native.backends.cuda.sampling.sampler import Sampler
from engines.native.backends.cuda.steps.buffers import Rows


class Ranks:
    """The ranks of tensor parallelism, in order; implements ModelSteps.

    The last one reads the tokens and samples. The others' logits are written into its memory.
    """

    def __init__(self, ranks: Sequence[Stage], links: Links) -> None:
        self.every, self.first, self.last = ranks, ranks[-1], ranks[-1]
        self._links = links
        ends = [*accumulate(rank.num_columns for rank in ranks)]
        self._columns = [
            slice(end - rank.num_columns, end) for rank, end in zip(ranks, ends, strict=True)
        ]
        for rank in ranks[:-1]:
            self.last.rows.copies.append(rank.rows.packed)
            self.last.buffers.copies.append(rank.buffers.packed)

    def decode(self, sizes: list[int], sampler: Sampler) -> RankGraphs:
        return self._graphs(sizes, lambda rank, n: rank.decode(n, *self._ends(rank, sampler)).run)

    def verify(self, sizes: list[int], sampler: Sampler) -> RankGraphs:
        return self._graphs(sizes, lambda rank, n: rank.verify(n, *self._ends(rank, sampler)).run)

    def prefill(self, sizes: list[int]) -> RankGraphs:
        return self._graphs(sizes, lambda rank, n: rank.prefill(n).run)

    def head(self, sizes: list[int], sampler: Sampler, states: Tensor) -> RankGraphs:
        def launches(rank: Stage, num: int) -> Callable[[], None]:
            own = states if rank is self.last else torch.zeros_like(states, device=rank.device)
            return partial(rank.decode(num, *self._ends(rank, sampler)).head, own)

        return self._graphs(sizes, launches)

    def open(self) -> None:
        self._links.open()

    def _ends(self, rank: Stage, sampler: Sampler) -> tuple[Rows, Tensor]:
        columns = self._columns[self.every.index(rank)]
        rows = sampler.rows if rank is self.last else rank.rows
        return rows, sampler.logits[:, columns]

    def _graphs(
        self, sizes: list[int], launches: Callable[[Stage, int], Callable[[], None]]
    ) -> RankGraphs:
        return RankGraphs(
            [Graphs({n: launches(rank, n) for n in sizes}, rank.device) for rank in self.every]
        )
