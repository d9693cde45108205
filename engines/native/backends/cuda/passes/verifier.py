"""Decode steps whose rows are drafts, or tokens that are known: their graphs, by size."""

from __future__ import annotations

from functools import partial

from engines.native.backends.base import Row
from engines.native.backends.cuda.graphs.captured import Graphs
from engines.native.backends.cuda.graphs.staged import StepGraphs
from engines.native.backends.cuda.kernels import verify
from engines.native.backends.cuda.kernels.launch import launch
from engines.native.backends.cuda.memory.transfer import Transfer
from engines.native.backends.cuda.sampling.sampler import Sampler
from engines.native.backends.cuda.steps.buffers import SlotTensors
from engines.native.backends.cuda.steps.verify import MAX_DRAFTS, Guesses


class Verifier:
    """The graphs of decode steps with drafts, and of what follows their draw."""

    def __init__(
        self, steps: StepGraphs, guesses: Guesses, sampler: Sampler, slots: SlotTensors,
        transfer: Transfer,
    ) -> None:  # fmt: skip
        self._guesses, self._sampler, self._slots = guesses, sampler, slots
        self._graphs, self._transfer = steps, transfer
        self._accept_graphs = Graphs(
            {n: partial(self._accept, n) for n in steps.sizes}, transfer.device
        )

    @property
    def most_rows(self) -> int:
        return self._graphs.sizes[-1]

    def fitting(self, rows: list[Row]) -> list[Row]:
        """The rows, the last without their drafts if there are more than a step holds."""
        room = self.most_rows - len(rows)
        fitting = []
        for row in rows:
            kept = row._replace(drafts=row.drafts[: max(room, 0)])
            room -= len(kept.drafts)
            fitting.append(kept)
        return fitting

    def load(self, rows: list[Row]) -> None:
        """Enqueue the draft tokens of the next step's rows."""
        self._transfer.fill(self._guesses.copies, self._guesses.pack(rows))

    def load_known(self, token_ids: list[int]) -> None:
        """Enqueue the tokens of the next step's rows, which are all known."""
        self._transfer.fill(self._guesses.copies, self._guesses.pack_known(token_ids))

    def run(self, num: int, *, is_adapted: bool) -> None:
        """Enqueue the step of `num` rows, draft tokens included."""
        self._graphs.run(num, is_adapted=is_adapted)

    def accept(self, num: int) -> None:
        """Enqueue the copy of each sequence's next token to its input, after sampling."""
        self._accept_graphs.run(num)

    def _accept(self, num: int) -> None:
        rows = self._sampler.rows
        launch(
            verify.accept_kernel, (num,), rows.sampled, self._guesses.token_ids,
            self._guesses.firsts, rows.slots, self._slots.token_ids, rows.num_rows,
            MOST=MAX_DRAFTS + 1, num_warps=1,
        )  # fmt: skip
