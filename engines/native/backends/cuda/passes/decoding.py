"""The rows of a step that decode: one token of each sequence, and its drafts if it brings some."""

from __future__ import annotations

from engines.native.backends.base import Row
from engines.native.backends.cuda.graphs.captured import StepSizes
from engines.native.backends.cuda.memory.transfer import Transfer
from engines.native.backends.cuda.passes.replay import Places
from engines.native.backends.cuda.passes.stages import ModelSteps
from engines.native.backends.cuda.passes.verifier import Verifier
from engines.native.backends.cuda.sampling.draws import Draw, Draws
from engines.native.backends.cuda.sampling.sampler import Sampler
from engines.native.backends.cuda.sampling.slots import SampledSlots
from engines.native.backends.cuda.steps.verify import expanded


class Decoder:
    """The graphs of decode steps, and of those that verify drafts or compute known tokens again."""

    def __init__(
        self,
        stages: ModelSteps,
        sizes: StepSizes,
        sampler: Sampler,
        draws: Draws,
        slots: SampledSlots,
        transfer: Transfer,
    ) -> None:
        self._sampler = sampler
        self._draws, self._slots = draws, slots
        self._graphs = stages.decode(sizes.decode, sampler)
        self._verifier: Verifier | None = None
        if sizes.verify:
            self._verifier = Verifier(
                stages.verify(sizes.verify, sampler),
                stages.last.guesses,
                sampler,
                stages.last.slots,
                transfer,
            )

    def replay(self, rows: list[Row]) -> None:
        """Decode known tokens, only for their K/V, before the step's own rows."""
        verifier = self._verifier
        if verifier is None:
            return
        for first in range(0, len(rows), verifier.most_rows):
            piece = rows[first : first + verifier.most_rows]
            verifier.load_known([self._slots[row.slot].token_ids[row.start] for row in piece])
            self._draws.prepare(self._sampler, piece, [])
            verifier.run(len(piece), is_adapted=self._slots.are_adapted(piece))

    def launch(self, decoded: Places) -> Draw:
        """Enqueue the rows, as far as their logits."""
        rows, indices = decoded
        if self._verifier is not None and any(row.drafts for row in rows):
            return self._launch_drafts(self._verifier, decoded)
        draw = self._draws.prepare(self._sampler, rows, indices)
        self._graphs.run(len(indices), is_adapted=self._slots.are_adapted(rows))
        return draw

    def _launch_drafts(self, verifier: Verifier, decoded: Places) -> Draw:
        rows = verifier.fitting(decoded.rows)
        verifier.load(rows)
        rows, places = expanded(rows)
        indices = [decoded.indices[place] for place in places]
        draw = self._draws.prepare(self._sampler, rows, indices)
        draw.accept = verifier.accept
        verifier.run(len(rows), is_adapted=self._slots.are_adapted(rows))
        return draw
