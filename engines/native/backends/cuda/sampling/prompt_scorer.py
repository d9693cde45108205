"""Log-probabilities of a prompt's tokens, from the states that its chunk has left."""

from __future__ import annotations

from torch import Tensor

from engines.native.backends.base import Row
from engines.native.backends.cuda.graphs.staged import StepGraphs
from engines.native.backends.cuda.memory.transfer import Transfer
from engines.native.backends.cuda.sampling.sampler import Sampler
from engines.native.backends.cuda.sampling.slots import SampledSlots
from engines.native.backends.scoring import MAX_ROWS, Scores, joined, score


class PromptScorer:
    """Runs the output head over a chunk's rows, few at once, and keeps what was asked for."""

    def __init__(
        self,
        states: Tensor,
        head_in: Tensor,
        head: StepGraphs,
        sampler: Sampler,
        slots: SampledSlots,
        transfer: Transfer,
    ) -> None:
        """`states` (tokens, at least hidden) bf16: normed, of a chunk; `head` makes the logits of
        `sampler` from `head_in`, where a decode step finds its own later."""
        self._states, self._head_in, self._head = states, head_in, head
        self._sampler, self._slots, self._transfer = sampler, slots, transfer

    def run(self, rows: list[Row], indices: list[int]) -> dict[int, Scores]:
        """Enqueue the scores of those rows that want some: on the host, by `indices`, once the step
        is done."""
        found, first = {}, 0
        for row, index in zip(rows, indices, strict=True):
            if row.prompt_logprobs is not None:
                found[index] = self._scores(row, first)
            first += row.end - row.start
        return found

    def _scores(self, row: Row, first: int) -> Scores:
        """`first`: where the row's states begin."""
        assert row.prompt_logprobs is not None
        slot = self._slots[row.slot]
        end = min(row.end, slot.num_prompt_tokens - 1)
        token_ids = self._transfer.upload([*slot.token_ids[row.start + 1 : end + 1]]).long()
        pieces = []
        for piece in token_ids.split(min(MAX_ROWS, len(self._head_in))):
            pieces.append(score(self._logits(first, len(piece)), piece, row.prompt_logprobs))
            first += len(piece)
        return Scores(*map(self._transfer.to_host, joined(pieces)))

    def _logits(self, first: int, num: int) -> Tensor:
        """(num, vocabulary) float32, until the next call."""
        states = self._states[first : first + num, : self._head_in.shape[1]]
        self._head_in[:num] = states
        self._sampler.rows.num_rows.fill_(num)
        self._head.run(num)
        return self._sampler.logits[:num]
