"""The CUDA backend: steps are enqueued as CUDA graphs, and read when they are done.

A batch's rows of one token are the decode graph's, the others the prefill graph's; the sampled
tokens stay on the device, where the next step finds them by slot.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from engines.native.backends.base import Batch, Capacity, Move, Row
from engines.native.backends.block_tensors import BlockTensors
from engines.native.backends.cuda.choices.of_card import CardChoices
from engines.native.backends.cuda.graphs.captured import step_sizes
from engines.native.backends.cuda.memory.adapter_room import AdapterRoom
from engines.native.backends.cuda.memory.host_blocks import CudaHostBlocks, joined_capacity
from engines.native.backends.cuda.memory.transfer import Transfer
from engines.native.backends.cuda.passes.decoding import Decoder
from engines.native.backends.cuda.passes.launched import CudaStep
from engines.native.backends.cuda.passes.prefilling import Prefiller
from engines.native.backends.cuda.passes.ranks import Ranks
from engines.native.backends.cuda.passes.replay import (
    BatchParts,
    cheapest_parts,
    equal_parts,
    joined,
)
from engines.native.backends.cuda.passes.stages import (
    ModelPart,
    ModelSteps,
    MostWork,
    Stage,
    Stages,
)
from engines.native.backends.cuda.ranks.exchange import Links
from engines.native.backends.cuda.sampling.draws import Draws
from engines.native.backends.cuda.sampling.sampler import Sampler
from engines.native.backends.cuda.sampling.slots import SampledSlots
from engines.native.backends.cuda.steps.adapter_table import CudaAdapters
from engines.native.backends.cuda.steps.buffers import Rows
from engines.native.backends.scoring import Scores
from engines.native.config import ModelConfig
from engines.native.kv_pool import FP8


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
        choices: CardChoices | None = None,
        num_host_blocks: int = 0,
        are_ranks: bool = False,
        adapters: AdapterRoom | None = None,
    ) -> None:
        """Compile and capture every size of step: nothing is compiled after this.

        `parts`: of the model, in order; `are_ranks`: they are parts of every layer, and there are
        no adapters.
        """
        gc.collect()  # what loading, or an engine before, has left may hold memory of the device
        device, self._capacity = parts[-1].cache.device, replace(capacity, takes_steady=True)
        self._is_batch_invariant, self._most_tokens = is_batch_invariant, max_num_tokens
        sizes = step_sizes(
            max_num_seqs,
            max_num_tokens,
            has_drafts=capacity.max_drafts > 0,
            is_invariant=is_batch_invariant,
        )
        stages = _stages_of(
            model,
            parts,
            capacity,
            choices or CardChoices.of(device),
            max_num_seqs,
            max_num_tokens,
            sizes.most_rows,
            is_batch_invariant=is_batch_invariant,
            are_ranks=are_ranks,
            adapters=adapters,
        )
        last = stages.last
        self._transfer = transfer = Transfer(device)
        table, own = None, [each.adapters for each in stages.every if each.adapters is not None]
        if own:
            table = CudaAdapters(model, own, transfer)
            self._capacity = replace(self._capacity, adapters=table)
        self._slots = slots = SampledSlots(
            [each.slots for each in stages.every],
            stages.first.slots,
            model.vocab_size,
            transfer,
            None if table is None else table.place_of,
        )
        samplers = decode, first = (
            Sampler(last.rows, last.slots, slots.fields, model.vocab_size),
            Sampler(Rows(sizes.most_rows, device), last.slots, slots.fields, model.vocab_size),
        )
        self._draws = draws = Draws(samplers, {*sizes.decode, *sizes.verify}, slots, transfer)
        self._decoder = Decoder(stages, sizes, decode, draws, slots, transfer)
        self._prefiller = Prefiller(stages, sizes, model.hidden_size, first, draws, slots, transfer)
        self._hosts: list[CudaHostBlocks] = []
        stages.open()
        caches = [part.cache for part in parts]
        # Blocks of one rank are no whole blocks: there is no access.
        self.access = None if are_ranks else BlockTensors(caches, self._move)
        if num_host_blocks:  # last: nothing is pinned while graphs are captured
            self._hosts = [CudaHostBlocks((each,), num_host_blocks) for each in caches]
            host = joined_capacity([each.capacity() for each in self._hosts])
            self._capacity = replace(self._capacity, host=host)

    def _move(self, moves: tuple[Move, ...]) -> None:
        for host in self._hosts:
            host.move(moves, is_needed=True)

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    @torch.inference_mode()
    def launch(self, batch: Batch) -> CudaStep:
        """Enqueue a step; its sampling too, unless a row waits for its mask."""
        for host in self._hosts:
            host.move(batch.moves, is_needed=batch.needs_moves)
        num_steady = 0
        if batch.steady is not None:
            num_steady = len(batch.steady.slots)
            batch = batch._replace(rows=(*batch.steady.rows(), *batch.rows), steady=None)
        self._slots.update(batch)
        parts = self._parts(batch.rows)
        draws = []
        scores: dict[int, Scores] = {}
        if parts.prefilled.rows:
            draws.append(self._prefiller.launch(parts.prefilled, scores))
        self._decoder.replay(parts.replayed)
        if parts.decoded.rows:
            draws.append(self._decoder.launch(parts.decoded))
        drawn = [draw for draw in draws if draw.rows]
        step = CudaStep(batch, num_steady, drawn, scores, self._draws, self._transfer)
        if not any(row.is_masked for row in batch.rows[num_steady:]):
            step.sample({})
        return step

    def close(self) -> None:
        """All is this process's own."""

    def _parts(self, rows: tuple[Row, ...]) -> BatchParts:
        if not self._is_batch_invariant:
            return joined(cheapest_parts(rows), self._most_tokens)
        return equal_parts(rows, lambda slot: self._slots[slot].num_prompt_tokens)


def _stages_of(
    model: ModelConfig,
    parts: Sequence[ModelPart],
    capacity: Capacity,
    choices: CardChoices,
    max_num_seqs: int,
    max_num_tokens: int,
    most_rows: int,
    *,
    is_batch_invariant: bool,
    are_ranks: bool,
    adapters: AdapterRoom | None,
) -> ModelSteps:
    """The model's parts with buffers for the largest step."""
    if parts[-1].cache.dtype == FP8:
        choices = choices.without_long_attention()  # its copy engine brings K/V as bf16
    long_attention = choices.long_attention(model)
    least_depth = math.inf if long_attention is None else long_attention.least_depth
    # Tables for the model's longest sequence: kernels do not depend on the profile's.
    longest = max(capacity.max_model_len, model.max_position_embeddings)
    most = MostWork(
        slots=max_num_seqs,
        blocks=-(-longest // capacity.block_size) + 1,
        rows=most_rows,
        tokens=max_num_tokens,
        sequences=max_num_seqs,
        least_depth=0 if is_batch_invariant and long_attention is not None else least_depth,
        adapters=adapters,
    )
    size = capacity.block_size
    if not are_ranks:
        return Stages([Stage(part, size, most, choices) for part in parts])
    devices = [part.cache.device for part in parts]
    links = Links(devices, model.hidden_size, max(max_num_tokens, most_rows))
    return Ranks(
        [
            Stage(part, size, most, choices, side)
            for part, side in zip(parts, links.sides, strict=True)
        ],
        links,
    )
