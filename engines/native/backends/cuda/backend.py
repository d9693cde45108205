"""The CUDA backend: steps are enqueued as CUDA graphs, and read when they are done.

A batch's rows of one token are the decode graph's, the others the prefill graph's; the sampled
tokens stay on the device, where the next step finds them by slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from engines.native.backends.base import Batch, Capacity, Row, Sampled, TokenMasks
from engines.native.backends.cuda.choices.of_card import CardChoices
from engines.native.backends.cuda.graphs.captured import Graphs, in_turn, step_sizes
from engines.native.backends.cuda.memory.host_blocks import HostBlocks, joined_capacity
from engines.native.backends.cuda.memory.transfer import Transfer
from engines.native.backends.cuda.passes.replay import (
    Parts,
    Places,
    cheapest_parts,
    equal_parts,
    joined,
)
from engines.native.backends.cuda.passes.stages import ModelPart, MostWork, Stage, Stages
from engines.native.backends.cuda.sampling.draws import Draw, Draws
from engines.native.backends.cuda.sampling.outcome import Token, sampled_of
from engines.native.backends.cuda.sampling.prompt_scorer import PromptScorer
from engines.native.backends.cuda.sampling.sampler import Sampler
from engines.native.backends.cuda.sampling.slots import Slots
from engines.native.backends.cuda.steps.buffers import Rows
from engines.native.backends.cuda.steps.decode import DecodeStep
from engines.native.backends.cuda.steps.eagle import DeviceHead
from engines.native.backends.cuda.steps.prefill import ON_DEVICE, Prefill, TokenRun
from engines.native.backends.cuda.steps.verify import Verifier, VerifyStep, expanded
from engines.native.backends.fp8 import STORED
from engines.native.backends.scoring import Scores
from engines.native.config import ModelConfig
from engines.native.eagle.head import EagleHead


class CudaBackend:
    """Implements engines.native.backends.base.Backend; any device that runs the kernels."""

    def __init__(
        self,
        model: ModelConfig,
        parts: Sequence[ModelPart],
        capacity: Capacity,
        max_num_seqs: int,
        max_num_tokens: int,
        *,
        is_batch_invariant: bool = False,
        head: EagleHead | None = None,
        choices: CardChoices | None = None,
        num_host_blocks: int = 0,
    ) -> None:
        """Compile and capture every size of step: nothing is compiled after this.

        `parts`: of the model, in order; an EAGLE head goes with one alone.
        """
        device, self._capacity = parts[-1].cache.device, capacity
        self._is_batch_invariant, self._most_tokens = is_batch_invariant, max_num_tokens
        sizes = step_sizes(
            max_num_seqs,
            max_num_tokens,
            has_drafts=capacity.max_drafts > 0,
            is_invariant=is_batch_invariant,
        )
        of_card = choices or CardChoices.of(device)
        if parts[-1].cache.dtype == STORED:
            of_card = of_card.without_hopper()  # its copy engine brings K/V as bf16
        hopper = of_card.hopper(model)
        least_depth = math.inf if hopper is None else hopper.least_depth
        # Tables for the model's longest sequence: kernels do not depend on the profile's.
        longest = max(capacity.max_model_len, model.max_position_embeddings)
        most = MostWork(
            slots=max_num_seqs + (head is not None),
            blocks=-(-longest // capacity.block_size) + 1,
            rows=sizes.most_rows,
            tokens=max_num_tokens,
            sequences=max_num_seqs,
            least_depth=0 if is_batch_invariant and hopper is not None else least_depth,
        )
        stages = Stages([Stage(part, capacity.block_size, most, of_card) for part in parts])
        last = stages.last
        self.transfer = transfer = Transfer(device)
        self._slots = Slots(stages.slots, model.vocab_size, transfer)
        self._buffers, self._guesses = last.buffers, last.guesses
        self._decode, self._first = (
            Sampler(rows, last.slots, model.vocab_size, device)
            for rows in (last.rows, Rows(most.rows, device))
        )
        self._head_in = torch.zeros(
            (most.rows, model.hidden_size), dtype=torch.bfloat16, device=device
        )
        self._eagle: DeviceHead | None = None
        if head is not None:
            self._eagle = DeviceHead(
                head, capacity.num_blocks, capacity.block_size, last.slots, most.rows,
                max_num_tokens,
            )  # fmt: skip
        self._decode_graphs = stages.decode(
            {n: self._decoding(n, last.decode(n, self._decode)) for n in sizes.decode}
        )
        self._head_graphs = Graphs(
            {n: partial(last.decode(n, self._first).head, self._head_in) for n in sizes.decode},
            device,
        )
        self._scorer = PromptScorer(
            self._buffers.normed,
            self._head_in,
            self._head_graphs,
            self._first,
            self._slots,
            transfer,
        )
        self._prefill_graphs = stages.prefill(
            {n: self._prefilling(n, last.prefill(n)) for n in sizes.prefill}
        )
        drawn = {*sizes.decode, *sizes.verify}
        self._draws = Draws((self._decode, self._first), drawn, self._slots, transfer)
        self._verifier: Verifier | None = None
        if sizes.verify:
            self._verifier = Verifier(
                stages.verify(
                    {n: self._verifying(n, last.verify(n, self._decode)) for n in sizes.verify}
                ),
                self._guesses,
                self._decode,
                last.slots,
                transfer,
                None if self._eagle is None else self._accepted,
            )
        self._draws.verifier = self._verifier
        self._hosts: list[HostBlocks] = []
        if num_host_blocks:  # last: nothing is pinned while graphs are captured
            self._hosts = [
                HostBlocks(self._with_head(part.cache), num_host_blocks) for part in parts
            ]
            host = joined_capacity([each.capacity() for each in self._hosts])
            self._capacity = replace(capacity, host=host)

    def _with_head(self, cache: Tensor) -> tuple[Tensor, ...]:
        """All tensors kept with the blocks of a device."""
        return (cache,) if self._eagle is None else (cache, *self._eagle.tensors)

    def _decoding(self, num: int, step: DecodeStep) -> Callable[[], None]:
        head, rows = self._eagle, self._decode.rows
        if head is None:
            return step.run
        step.tap = head.decode_taps
        return in_turn(step.run, partial(head.after_decode, num, rows))

    def _verifying(self, num: int, step: VerifyStep) -> Callable[[], None]:
        head, rows = self._eagle, self._decode.rows
        if head is None:
            return step.run
        step.tap = head.decode_taps
        return in_turn(step.run, partial(head.after_verify, num, rows, self._guesses))

    def _prefilling(self, num: int, step: Prefill) -> Callable[[], None]:
        head = self._eagle
        if head is None:
            return step.run
        step.tap = head.prefill_taps
        return in_turn(step.run, partial(head.after_prefill, num, self._buffers))

    def _accepted(self, num: int) -> None:
        assert self._eagle is not None
        self._eagle.accept(num, self._decode.rows, self._guesses)

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    @torch.inference_mode()
    def launch(self, batch: Batch) -> CudaStep:
        """Enqueue a step; its sampling too, unless a row waits for its mask."""
        for host in self._hosts:
            host.move(batch.moves, is_needed=batch.needs_moves)
        self._slots.update(batch)
        if self._eagle is not None and batch.starts:
            self._eagle.start(batch, self.transfer.upload)
        parts = self._parts(batch.rows)
        draws = []
        scores: dict[int, Scores] = {}
        if parts.prefilled.rows:
            draws.append(self._launch_prefill(parts.prefilled, scores))
        if parts.replayed and self._verifier is not None:
            self._replay(self._verifier, parts.replayed)
        if parts.decoded.rows:
            draws.append(self._launch_decode(parts.decoded))
        step = CudaStep(self, batch, [draw for draw in draws if draw.rows], scores)
        if not any(row.is_masked for row in batch.rows):
            step.sample({})
        return step

    def _parts(self, rows: tuple[Row, ...]) -> Parts:
        if not self._is_batch_invariant:
            parts = cheapest_parts(rows)
            # An EAGLE head takes in rows that decode from the decode step.
            return joined(parts, self._most_tokens) if self._eagle is None else parts
        return equal_parts(rows, lambda slot: self._slots[slot].num_prompt_tokens)

    def _replay(self, verifier: Verifier, rows: list[Row]) -> None:
        """Decode known tokens, only for their K/V, before the step's own rows."""
        for first in range(0, len(rows), verifier.most_rows):
            piece = rows[first : first + verifier.most_rows]
            verifier.load_known([self._slots[row.slot].token_ids[row.start] for row in piece])
            self._draws.prepare(self._decode, piece, [])
            verifier.run(len(piece))

    def _launch_decode(self, decoded: Places) -> Draw:
        rows, indices = decoded
        if self._verifier is not None and any(row.drafts for row in rows):
            rows = self._verifier.fitting(rows)
            self._verifier.load(rows)
            rows, places = expanded(rows)
            draw = self._draws.prepare(self._decode, rows, [indices[place] for place in places])
            draw.is_verified = True
            self._verifier.run(len(rows))
            return draw
        draw = self._draws.prepare(self._decode, rows, indices)
        self._decode_graphs.run(len(indices))
        return draw

    def _launch_prefill(self, prefilled: Places, scores: dict[int, Scores]) -> Draw:
        rows, indices = prefilled
        chunks = [
            TokenRun(row.slot, row.start, self._token_ids(row), self._num_states(row))
            for row in rows
        ]
        host = torch.zeros(len(self._buffers.packed), dtype=torch.int32)
        self._buffers.pack(chunks, host)
        self.transfer.fill(self._buffers.copies, host)
        self._prefill_graphs.run(sum(len(chunk.token_ids) for chunk in chunks))
        scores |= self._scorer.run(rows, indices)
        last = [place for place, row in enumerate(rows) if row.is_last]
        draw = self._draws.prepare(
            self._first, [rows[place] for place in last], [indices[place] for place in last]
        )
        if last:
            wanted = self._buffers.last_rows[self.transfer.upload(last)].long()
            hidden = self._buffers.normed[wanted, : self._head_in.shape[1]]
            self._head_in[: len(last)] = hidden
            self._head_graphs.run(len(last))
        return draw

    def _token_ids(self, row: Row) -> list[int]:
        """The ids of a row's positions; a freshly sampled one is known on the device only."""
        if row.is_last and row.end - row.start == 1:
            return [ON_DEVICE]
        return [*self._slots[row.slot].token_ids[row.start : row.end]]

    def draw(self, draws: list[Draw], masks: Mapping[int, TokenMasks]) -> None:
        """Enqueue the sampling of a step's rows; `masks` by the row of the batch."""
        for each in draws:
            self._draws.enqueue(each, masks)
        if draws:
            self._slots.return_tokens()

    def _num_states(self, row: Row) -> int:
        """Of how many of a row's last tokens states are needed after the last layer."""
        is_all = row.prompt_logprobs is not None or self._eagle is not None
        return row.end - row.start if is_all else int(row.is_last)

    def propose(self, slots: list[int], wanted: list[int]) -> Tensor:
        """Enqueue `num` drafts of each slot: (drafts, slots) on the host, once it is done."""
        assert self._eagle is not None
        return self.transfer.to_host(self._eagle.propose(slots, wanted, self.transfer.upload))


class CudaStep:
    """A launched step; its tokens are on their way once it is sampled."""

    def __init__(
        self, backend: CudaBackend, batch: Batch, draws: list[Draw], scores: dict[int, Scores]
    ) -> None:
        """`scores` of prompts, by the row of the batch."""
        self._backend, self._draws, self._scores = backend, draws, scores
        self._rows = batch.rows
        self._wanting = [i for i, row in enumerate(batch.rows) if row.is_last and row.num_wanted]
        self._proposed: Tensor | None = None  # (drafts, rows that want some), on the host
        self._done = backend.transfer.done()

    def mask(self, masks: Mapping[int, TokenMasks]) -> None:
        """Enqueue the sampling with these masks, by the row of the batch."""
        self.sample(masks)

    @torch.inference_mode()
    def sample(self, masks: Mapping[int, TokenMasks]) -> None:
        """Enqueue the draws."""
        self._backend.draw(self._draws, masks)
        if self._wanting:
            wanting = [self._rows[i] for i in self._wanting]
            self._proposed = self._backend.propose(
                [row.slot for row in wanting], [row.num_wanted for row in wanting]
            )
        self._done = self._backend.transfer.done()

    def collect(self) -> list[Sampled]:
        """Wait for the step; the results of each row with is_last or prompt_logprobs."""
        if self._done is not None:
            self._done.synchronize()
        tokens: dict[int, list[Token]] = {}
        for draw in self._draws:
            if draw.tokens is None:
                continue
            for place, (row, token) in enumerate(zip(draw.rows, draw.tokens.tolist(), strict=True)):
                tokens.setdefault(row, []).append((token, draw.logprobs.get(place)))
        guesses = self._guesses()
        sampled = {
            i: sampled_of(of, self._rows[i].drafts, guesses.get(i, ())) for i, of in tokens.items()
        }
        for i, scores in self._scores.items():
            sampled[i] = sampled.get(i, Sampled(()))._replace(prompt_logprobs=scores.packed())
        return [sampled[i] for i in sorted(sampled)]

    def _guesses(self) -> dict[int, tuple[int, ...]]:
        """The draft tokens of each row that asked for some."""
        if self._proposed is None:
            return {}
        return {
            i: tuple(column[: self._rows[i].num_wanted])
            for i, column in zip(self._wanting, self._proposed.t().tolist(), strict=True)
        }
