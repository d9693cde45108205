"""The CUDA backend: steps are enqueued as CUDA graphs, and read when they are done.

A batch's rows of one token are the decode graph's, the others the prefill graph's; the sampled
tokens stay on the device, where the next step finds them by slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from engines.errors import EngineStartError
from engines.native.backends.base import Batch, Capacity, Row, Sampled, SlotStart, TokenMasks
from engines.native.backends.cuda.adjust import OUT, SlotSampling, exclude, floors
from engines.native.backends.cuda.artefact import Artefact
from engines.native.backends.cuda.buffers import Rows, Scratch, SlotTensors
from engines.native.backends.cuda.choices import MAX_ROWS, choices_for
from engines.native.backends.cuda.decode import DecodeStep
from engines.native.backends.cuda.eagle import DeviceHead, load_head
from engines.native.backends.cuda.graphs import Graphs, in_turn, step_sizes
from engines.native.backends.cuda.outcome import Token, sampled_of
from engines.native.backends.cuda.prefill import Prefill, PrefillBuffers, TokenRun
from engines.native.backends.cuda.replay import Parts, Places, cheapest_parts, equal_parts
from engines.native.backends.cuda.sampler import Sampler
from engines.native.backends.cuda.shape import Shape
from engines.native.backends.cuda.verify import (
    Guesses,
    Verifier,
    VerifyStep,
    draft_capacity,
    expanded,
)
from engines.native.backends.cuda.weights import ModelWeights
from engines.native.config import ModelConfig, NativeConfig
from engines.native.eagle.head import EagleHead
from engines.native.kv_pool import (
    MemoryBudget,
    choose_num_blocks,
    layers_per_group,
    longest_sequence,
)
from engines.native.weights import Checkpoint, tensor_specs

_GREEDY_BELOW = 1e-5  # temperatures under this are greedy
_MULTIPLES = {"hidden_size": 32, "intermediate_size": 32, "head_dim": 32, "num_local_experts": 4}
_LEFT_FREE = 4 << 30  # for graphs, cuBLAS and what single rows ask of the sampler


@dataclass(slots=True)
class _Slot:
    """What the host knows of the sequence in a slot."""

    token_ids: tuple[int, ...]  # known when it took the slot
    num_prompt_tokens: int
    sampling: SlotSampling
    num_blocks: int = 0  # of its tables


@dataclass(slots=True)
class _Draw:
    """Rows that one sampler samples, by their index in the batch."""

    sampler: Sampler
    rows: list[int]
    slots: list[_Slot]
    tokens: Tensor | None = None  # on the host, once the step is done
    logprobs: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)  # by place
    is_verified: bool = False  # some of the rows are guesses


class CudaBackend:
    """Implements engines.native.backends.base.Backend; any device that runs the kernels."""

    def __init__(
        self,
        model: ModelConfig,
        weights: ModelWeights,
        cache: Tensor,
        capacity: Capacity,
        max_num_seqs: int,
        max_num_tokens: int,
        *,
        is_batch_invariant: bool = False,
        head: EagleHead | None = None,
    ) -> None:
        """Compile and capture every size of step: nothing is compiled after this."""
        self._device, self._capacity = cache.device, capacity
        self._is_batch_invariant = is_batch_invariant
        shape = Shape(model)
        self._vocab_size = model.vocab_size
        blocks = -(-capacity.max_model_len // capacity.block_size) + 1
        self._table_stride = blocks
        num_slots = max_num_seqs + (head is not None)
        self._device_slots = slots = SlotTensors.allocate(num_slots, blocks, self._device)
        self._slots: dict[int, _Slot] = {}
        sizes = step_sizes(
            max_num_seqs,
            max_num_tokens,
            has_drafts=capacity.max_drafts > 0,
            is_invariant=is_batch_invariant,
        )
        most = sizes.most_rows
        scratch = Scratch(shape, most, self._device)
        self._decode, self._first = (
            Sampler(Rows(most, self._device), slots, model.vocab_size, self._device)
            for _ in range(2)
        )
        self._buffers = PrefillBuffers(shape, max_num_tokens, max_num_seqs, self._device)
        self._head_in = torch.zeros(
            (most, model.hidden_size), dtype=torch.bfloat16, device=self._device
        )
        self._guesses = guesses = Guesses(most, self._device)
        self._eagle: DeviceHead | None = None
        if head is not None:
            self._eagle = DeviceHead(
                head, capacity.num_blocks, capacity.block_size, slots, most, max_num_tokens
            )
        args = (shape, weights, cache, capacity.block_size)
        is_packed = weights.layers[0].gate_up.is_packed

        def decode(rows: int, sampler: Sampler) -> DecodeStep:
            choices = choices_for(rows, is_packed)
            return DecodeStep(*args, rows, choices, slots, sampler.rows, scratch, sampler.logits)

        self._decode_graphs = Graphs(
            {n: self._decoding(n, decode(n, self._decode)) for n in sizes.decode}, self._device
        )
        self._head_graphs = Graphs(
            {n: partial(decode(n, self._first).head, self._head_in) for n in sizes.decode},
            self._device,
        )
        prefills = {n: Prefill(*args, n, slots, self._buffers) for n in sizes.prefill}
        self._prefill_graphs = Graphs(
            {n: self._prefilling(n, step) for n, step in prefills.items()}, self._device
        )
        self._draw_graphs = {
            id(sampler): Graphs(
                {n: partial(sampler.run, n) for n in {*sizes.decode, *sizes.verify}}, self._device
            )
            for sampler in (self._decode, self._first)
        }

        def verify(rows: int) -> VerifyStep:
            choices = choices_for(rows, is_packed)
            inputs, logits = self._decode.rows, self._decode.logits
            return VerifyStep(*args, rows, choices, slots, inputs, scratch, logits, guesses=guesses)

        steps = {n: self._verifying(n, verify(n)) for n in sizes.verify}
        accepted = None if self._eagle is None else self._accepted
        self._verifier = (
            Verifier(steps, guesses, self._decode, slots, self._device, accepted) if steps else None
        )

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

    @classmethod
    def load(cls, config: NativeConfig, model: ModelConfig) -> CudaBackend:
        """Load the weights and allocate the cache; raises EngineStartError if either cannot be."""
        _check(config, model)
        device = torch.device("cuda")
        checkpoint = Checkpoint(config.model_dir, tensor_specs(model))
        artefact = Artefact(config, model)
        longest = config.max_model_len or model.max_position_embeddings
        weights = artefact.weights(checkpoint, longest, device)
        torch.cuda.empty_cache()
        head = None if config.draft_dir is None else load_head(config, model, weights, longest)
        budget = kv_budget(torch.cuda.mem_get_info(device)[0], config.memory_fraction)
        beside = 0 if head is None else head.block_bytes(config.block_size)
        num_blocks = choose_num_blocks(model, config, budget, beside)
        capacity = Capacity(
            num_blocks,
            config.block_size,
            longest_sequence(model, config, num_blocks),
            **draft_capacity(config, model, 0 if head is None else head.num_values),
        )
        values = config.block_size * 2 * model.kv_size
        cache = torch.zeros(
            (layers_per_group(model), num_blocks, values), dtype=torch.bfloat16, device=device
        )
        with artefact.kernels(torch.cuda.get_device_capability(device)):
            return cls(
                model,
                weights,
                cache,
                capacity,
                config.max_num_seqs,
                config.max_num_batched_tokens,
                is_batch_invariant=config.batch_invariant,
                head=head,
            )

    @property
    def capacity(self) -> Capacity:
        """What the loaded model has room for."""
        return self._capacity

    @torch.inference_mode()
    def launch(self, batch: Batch) -> CudaStep:
        """Enqueue a step; its sampling too, unless a row waits for its mask."""
        self._update_tables(batch)
        parts = self._parts(batch.rows)
        draws = []
        if parts.prefilled.rows:
            draws.append(self._launch_prefill(parts.prefilled))
        if parts.replayed and self._verifier is not None:
            self._replay(self._verifier, parts.replayed)
        if parts.decoded.rows:
            draws.append(self._launch_decode(parts.decoded))
        step = CudaStep(self, batch, [draw for draw in draws if draw.rows])
        if not any(row.is_masked for row in batch.rows):
            step.sample({})
        return step

    def _parts(self, rows: tuple[Row, ...]) -> Parts:
        if not self._is_batch_invariant:
            return cheapest_parts(rows)
        return equal_parts(rows, lambda slot: self._slots[slot].num_prompt_tokens)

    def _update_tables(self, batch: Batch) -> None:
        """Bring the device's slots up to date: what has changed, in one copy each."""
        places: list[int] = []
        full: list[int] = []
        window: list[int] = []
        for start in batch.starts:
            self._slots[start.slot] = _Slot(
                start.token_ids,
                start.num_prompt_tokens,
                SlotSampling(start, self._vocab_size, self._device),
            )
            self._append(start.slot, start, places, full, window)
        for row in batch.rows:
            self._append(row.slot, row, places, full, window)
        if places:
            packed = self._upload([*places, *full, *window]).view(3, -1)
            index = packed[0].long()
            self._device_slots.full_tables.view(-1).index_copy_(0, index, packed[1])
            self._device_slots.window_tables.view(-1).index_copy_(0, index, packed[2])
        if batch.starts:
            self._start(batch.starts)
            if self._eagle is not None:
                self._eagle.start(batch, self._upload)

    def _append(
        self,
        slot: int,
        source: SlotStart | Row,
        places: list[int],
        full: list[int],
        window: list[int],
    ) -> None:
        known, num = self._slots[slot], len(source.full_blocks)
        first = slot * self._table_stride + known.num_blocks
        places += range(first, first + num)
        full += source.full_blocks
        window += source.window_blocks
        known.num_blocks += num

    def _start(self, starts: tuple[SlotStart, ...]) -> None:
        slots = self._device_slots
        temperatures = [
            0.0 if s.sampling.temperature < _GREEDY_BELOW else s.sampling.temperature
            for s in starts
        ]
        index = self._upload([s.slot for s in starts]).long()
        slots.token_ids.index_copy_(0, index, self._upload([s.token_ids[-1] for s in starts]))
        seeds = [_signed(s.seed) for s in starts]
        slots.seeds.index_copy_(0, index, self._upload(seeds, torch.int64))
        slots.temperatures.index_copy_(0, index, self._upload(temperatures, torch.float32))

    def _upload(self, values: list[int] | list[float], dtype: torch.dtype = torch.int32) -> Tensor:
        host = torch.tensor(values, dtype=dtype)
        return self._to_device(host)

    def _to_device(self, host: Tensor) -> Tensor:
        """Copy without waiting: the allocator of pinned memory keeps it until the copy is done."""
        if self._device.type == "cuda":
            host = host.pin_memory()
        return host.to(self._device, non_blocking=True)

    def _replay(self, verifier: Verifier, rows: list[Row]) -> None:
        """Decode known tokens for their K/V alone, before the step's own rows."""
        for first in range(0, len(rows), verifier.most_rows):
            piece = rows[first : first + verifier.most_rows]
            known = [self._slots[row.slot].token_ids[row.start] for row in piece]
            verifier.load(self._to_device(verifier.pack_known(known)))
            self._draw(self._decode, piece, [])
            verifier.run(len(piece))

    def _launch_decode(self, decoded: Places) -> _Draw:
        rows, indices = decoded
        if self._verifier is not None and any(row.drafts for row in rows):
            rows = self._verifier.fitting(rows)
            self._verifier.load(self._to_device(self._verifier.pack(rows)))
            rows, places = expanded(rows)
            draw = self._draw(self._decode, rows, [indices[place] for place in places])
            draw.is_verified = True
            self._verifier.run(len(rows))
            return draw
        draw = self._draw(self._decode, rows, indices)
        self._decode_graphs.run(len(indices))
        return draw

    def _launch_prefill(self, prefilled: Places) -> _Draw:
        rows, indices = prefilled
        chunks = [
            TokenRun(row.slot, row.start, [*self._slots[row.slot].token_ids[row.start : row.end]])
            for row in rows
        ]
        host = torch.zeros(len(self._buffers.packed), dtype=torch.int32)
        self._buffers.pack(chunks, host)
        self._buffers.packed.copy_(self._to_device(host))
        self._prefill_graphs.run(sum(len(chunk.token_ids) for chunk in chunks))
        last = [place for place, row in enumerate(rows) if row.is_last]
        draw = self._draw(
            self._first, [rows[place] for place in last], [indices[place] for place in last]
        )
        if last:
            wanted = self._buffers.last_rows[self._upload(last)].long()
            hidden = self._buffers.normed[wanted, : self._head_in.shape[1]]
            self._head_in[: len(last)] = hidden
            self._head_graphs.run(len(last))
        return draw

    def _draw(self, sampler: Sampler, rows: list[Row], indices: list[int]) -> _Draw:
        """Tell a sampler its rows; `indices` of them in the batch."""
        slots = [self._slots[row.slot] for row in rows]
        num = len(sampler.rows.slots)
        packed = torch.zeros((3, num), dtype=torch.int32)
        if rows:
            packed[:, : len(rows)] = torch.tensor(
                [
                    [row.slot for row in rows],
                    [row.start for row in rows],
                    [
                        row.end - slot.num_prompt_tokens
                        for row, slot in zip(rows, slots, strict=True)
                    ],
                ]
            )
        count = torch.tensor([len(rows)], dtype=torch.int32)
        sampler.rows.packed.copy_(self._to_device(torch.cat((count, packed.flatten()))))
        return _Draw(sampler, indices, slots)

    def draw(self, draw: _Draw, masks: Mapping[int, TokenMasks]) -> None:
        """Enqueue the sampling of a draw's rows; `masks` by the row of the batch."""
        sampler, num = draw.sampler, len(draw.rows)
        logits = sampler.logits
        for place, (row, slot) in enumerate(zip(draw.rows, draw.slots, strict=True)):
            if slot.sampling.params.logprobs is not None:
                draw.logprobs[place] = (torch.log_softmax(logits[place], 0),)
            if row in masks:
                exclude(logits[place], masks[row][place - draw.rows.index(row)])
            if slot.sampling.is_biased:
                slot.sampling.bias(logits[place])
        filtered = [i for i, slot in enumerate(draw.slots) if slot.sampling.is_filtered]
        if filtered:
            index = self._upload(filtered).long()
            params = [draw.slots[i].sampling.params for i in filtered]
            sampler.floors[index] = floors(logits[index], params)
        self._draw_graphs[id(sampler)].run(num)
        if draw.is_verified and self._verifier is not None:
            self._verifier.accept(num)
        if filtered:
            sampler.floors.fill_(OUT)
        tokens = sampler.rows.sampled[:num].clone()
        for place, slot in enumerate(draw.slots):
            if slot.sampling.is_biased:
                slot.sampling.count(tokens[place : place + 1])
        for place, (values,) in draw.logprobs.items():
            top = values.topk(draw.slots[place].sampling.params.logprobs or 0)
            chosen = values[tokens[place].clamp(min=0).long()]
            draw.logprobs[place] = tuple(
                self._to_host(t) for t in (chosen, top.indices, top.values)
            )
        draw.tokens = self._to_host(tokens)

    def propose(self, slots: list[int], wanted: list[int]) -> Tensor:
        """Enqueue so many guesses of each slot: (guesses, slots) on the host, once it is done."""
        assert self._eagle is not None
        return self._to_host(self._eagle.propose(slots, wanted, self._upload))

    def _to_host(self, values: Tensor) -> Tensor:
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=self._device.type == "cuda")
        return host.copy_(values, non_blocking=True)

    def done(self) -> torch.cuda.Event | None:
        """An event behind everything that is enqueued now."""
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record()
        return event


class CudaStep:
    """A launched step; its tokens are on their way once it is sampled."""

    def __init__(self, backend: CudaBackend, batch: Batch, draws: list[_Draw]) -> None:
        self._backend, self._draws = backend, draws
        self._rows = batch.rows
        self._order = [i for i, row in enumerate(batch.rows) if row.is_last]
        self._wanting = [i for i in self._order if batch.rows[i].num_wanted]
        self._proposed: Tensor | None = None  # (guesses, those that want some), on the host
        self._done = backend.done()

    def mask(self, masks: Mapping[int, TokenMasks]) -> None:
        """Enqueue the sampling with these masks, by the row of the batch."""
        self.sample(masks)

    @torch.inference_mode()
    def sample(self, masks: Mapping[int, TokenMasks]) -> None:
        """Enqueue the draws."""
        for draw in self._draws:
            self._backend.draw(draw, masks)
        if self._wanting:
            wanting = [self._rows[i] for i in self._wanting]
            self._proposed = self._backend.propose(
                [row.slot for row in wanting], [row.num_wanted for row in wanting]
            )
        self._done = self._backend.done()

    def collect(self) -> list[Sampled]:
        """Wait for the step; what each row with is_last has brought."""
        if self._done is not None:
            self._done.synchronize()
        tokens: dict[int, list[Token]] = {}
        for draw in self._draws:
            if draw.tokens is None:
                continue
            for place, (row, token) in enumerate(zip(draw.rows, draw.tokens.tolist(), strict=True)):
                tokens.setdefault(row, []).append((token, draw.logprobs.get(place)))
        guesses = self._guesses()
        return [
            sampled_of(tokens[i], self._rows[i].drafts, guesses.get(i, ()))
            for i in self._order
            if i in tokens
        ]

    def _guesses(self) -> dict[int, tuple[int, ...]]:
        """What was guessed for each row that wants some."""
        if self._proposed is None:
            return {}
        return {
            i: tuple(column[: self._rows[i].num_wanted])
            for i, column in zip(self._wanting, self._proposed.t().tolist(), strict=True)
        }


def _signed(seed: int) -> int:
    """64 bits of a seed as int64 holds them."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >> 63 else seed


def kv_budget(free: int, memory_fraction: float) -> MemoryBudget:
    """Bytes for K/V of the bytes that are free beside the weights."""
    left = max(free - _LEFT_FREE, 0)
    return MemoryBudget(left, min(left, int(free * memory_fraction)))


def _check(config: NativeConfig, model: ModelConfig) -> None:
    """Refuse what the kernels do not compute."""
    if not torch.cuda.is_available():
        raise EngineStartError("device is 'cuda' and no CUDA device is there; use device cpu")
    major, minor = torch.cuda.get_device_capability()
    if major < 9:
        raise EngineStartError(
            f"device is 'cuda' and its compute capability is {major}.{minor}; the kernels need 9.0"
        )
    if config.dtype != "bfloat16":
        raise EngineStartError(f"dtype is {config.dtype!r}; on device cuda use 'bfloat16'")
    if config.speculation == "eagle3" and config.batch_invariant:
        raise EngineStartError(
            "batch_invariant is true and speculation 'eagle3'; use speculation 'ngram' or 'none'"
        )
    if config.max_num_seqs > MAX_ROWS:
        raise EngineStartError(
            f"max_num_seqs is {config.max_num_seqs}; on device cuda at most {MAX_ROWS}"
        )
    longest = model.max_position_embeddings
    if config.max_model_len and config.max_model_len > longest:
        raise EngineStartError(
            f"max_model_len is {config.max_model_len}, above the model's"
            f" max_position_embeddings of {longest}; lower it"
        )
    if not model.attention_bias:
        raise EngineStartError("attention_bias is false; on device cuda it has to be true")
    for name, multiple in _MULTIPLES.items():
        if getattr(model, name) % multiple:
            raise EngineStartError(
                f"{name} is {getattr(model, name)}; on device cuda it has to be a multiple of"
                f" {multiple}"
            )
