"""The rows of a step that are prefilled: chunks of prompts, and decode rows that join them."""

from __future__ import annotations

import torch

from engines.native.backends.base import Row
from engines.native.backends.cuda.graphs.captured import StepSizes
from engines.native.backends.cuda.memory.transfer import Transfer
from engines.native.backends.cuda.passes.replay import Places
from engines.native.backends.cuda.passes.stages import ModelSteps
from engines.native.backends.cuda.sampling.draws import Draw, Draws
from engines.native.backends.cuda.sampling.prompt_scorer import PromptScorer
from engines.native.backends.cuda.sampling.sampler import Sampler
from engines.native.backends.cuda.sampling.slots import SampledSlots
from engines.native.backends.cuda.steps.token_runs import ON_DEVICE, TokenRun
from engines.native.backends.scoring import Scores


class Prefiller:
    """The graphs of chunks, and of the output head over the states that they leave."""

    def __init__(
        self,
        stages: ModelSteps,
        sizes: StepSizes,
        hidden_size: int,
        sampler: Sampler,
        draws: Draws,
        slots: SampledSlots,
        transfer: Transfer,
    ) -> None:
        last = stages.last
        self._sampler = sampler
        self._draws, self._slots, self._transfer = draws, slots, transfer
        self._buffers = last.buffers
        size = sizes.most_rows, hidden_size
        self._head_in = torch.zeros(size, dtype=torch.bfloat16, device=last.device)
        self._head_graphs = stages.head(sizes.decode, sampler, self._head_in)
        self._scorer = PromptScorer(
            self._buffers.normed, self._head_in, self._head_graphs, sampler, slots, transfer
        )
        self._graphs = stages.prefill(sizes.prefill)

    def launch(self, prefilled: Places, scores: dict[int, Scores]) -> Draw:
        """Enqueue the rows, as far as the logits of those that are sampled; adds to `scores`."""
        rows, indices = prefilled
        chunks = [
            TokenRun(row.slot, row.start, self._token_ids(row), self._num_states(row))
            for row in rows
        ]
        host = torch.zeros(len(self._buffers.packed), dtype=torch.int32)
        self._buffers.pack(chunks, host)
        self._transfer.fill(self._buffers.copies, host)
        num = sum(len(chunk.token_ids) for chunk in chunks)
        self._graphs.run(num, is_adapted=self._slots.are_adapted(rows))
        scores |= self._scorer.run(rows, indices)
        last = [place for place, row in enumerate(rows) if row.is_last]
        draw = self._draws.prepare(
            self._sampler, [rows[place] for place in last], [indices[place] for place in last]
        )
        if last:
            wanted = self._buffers.last_rows[self._transfer.upload(last)].long()
            hidden = self._buffers.normed[wanted, : self._head_in.shape[1]]
            self._head_in[: len(last)] = hidden
            self._head_graphs.run(len(last))
        return draw

    def _token_ids(self, row: Row) -> list[int]:
        """The ids of a row's positions; a freshly sampled one is known on the device only."""
        if row.is_last and row.end - row.start == 1:
            return [ON_DEVICE]
        return [*self._slots[row.slot].token_ids[row.start : row.end]]

    def _num_states(self, row: Row) -> int:
        """Of how many of a row's last tokens states are needed after the last layer."""
        return int(row.is_last) if row.prompt_logprobs is None else row.end - row.start
