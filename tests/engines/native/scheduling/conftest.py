"""A model whose logits depend on every K/V slot it reads, so that a wrong table shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engines.base import EngineRequest, SamplingParams, TokenEvent
from engines.native.assemble import assemble_core, options_of_backend
from engines.native.backends.base import (
    NULL_BLOCK,
    Backend,
    Batch,
    Capacity,
    HostCapacity,
    Move,
    Sampled,
    SlotStart,
    TokenMasks,
)
from engines.native.backends.cpu.backend import CpuBackend
from engines.native.backends.torch_errors import TorchErrors
from engines.native.config import NativeConfig
from engines.native.host.slots import Logits, Slot, Span
from engines.native.loop.block_manager import BlockManager
from engines.native.loop.core import EngineCore
from engines.native.loop.limits import SchedulerLimits
from engines.native.loop.scheduler import Scheduler
from engines.native.loop.sequence import Sequence

VOCAB_SIZE = 50
BLOCK_SIZE = 4
WINDOW = 6
OUTER = ("priority", "tenant", "cache_salt", "stop_token_ids", "grammar", "request_id")


def kv_value(token_id: int, position: int, full: list[int], window: list[int]) -> int:
    """What stands for the K/V of one token: a hash of the token and all it attends to."""
    return hash((token_id, position, tuple(full), tuple(window)))


def logits_of(value: int) -> torch.Tensor:
    return torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(value & (2**63 - 1)))


def step_cost(num_sequences: int, num_drafts: NDArray[np.float64]) -> NDArray[np.float64]:
    """A step of 32 tokens takes twice the time of one, and more do not fit."""
    num = num_sequences + num_drafts
    return np.where(num <= 32, 1 + num / 32, np.inf)


@dataclass
class HashModel:
    """Stands in for a model; keeps K/V values by (block, offset) as the real cache does."""

    num_blocks: int = 64
    block_size: int = BLOCK_SIZE
    window: int = WINDOW
    max_model_len: int = 200
    kv: dict[tuple[int, int], int] = field(default_factory=dict)
    num_steps: int = 0
    num_host_blocks: int = 0
    host: dict[tuple[int, int], int] = field(default_factory=dict)  # by (place, offset)
    before_moves: Callable[[Sequence_[Move]], None] = lambda moves: None
    before_step: Callable[[Sequence_[Span]], None] = lambda spans: None
    repetition: float = 0.0  # what the logit of the token that is next in a circle of 5 has more

    def forward(self, spans: Sequence_[Span], /) -> Logits:
        assert spans, "a step without work"
        self.num_steps += 1
        self.before_step(spans)
        values = [self._compute(span) for span in spans]
        last = [
            self._logits(value, token_id)
            for each, span in zip(values, spans, strict=True)
            for value, token_id in [*zip(each, span.token_ids, strict=True)][
                len(each) - span.num_sampled :
            ]
        ]
        return Logits(torch.stack(last) if last else torch.empty(0, VOCAB_SIZE))

    def _logits(self, value: int, token_id: int) -> torch.Tensor:
        logits = logits_of(value)
        logits[(token_id + 1) % 5] += self.repetition
        return logits

    def backend(self) -> CpuBackend:
        capacity = Capacity(
            self.num_blocks,
            self.block_size,
            self.max_model_len,
            max_drafts=8,
            step_cost=step_cost,
            host=self.host_capacity,
        )
        return CpuBackend(capacity, self.forward, move=self.move)

    @property
    def host_capacity(self) -> HostCapacity | None:
        if not self.num_host_blocks:
            return None
        return HostCapacity(self.num_host_blocks, block_bytes=100, load_s=1e-9)

    def move(self, moves: Sequence_[Move]) -> None:
        """Copy K/V between blocks and places; what a copy replaces is gone."""
        self.before_moves(moves)
        for block, place, is_save in moves:
            for offset in range(self.block_size):
                source, target = (block, offset), (place, offset)
                if is_save:
                    self.host[target] = self.kv[source]
                else:
                    self.kv[source] = self.host[target]

    def core(self, backend: Backend, **options: Any) -> EngineCore:
        """The overlapped loop over a backend of this model."""
        config = NativeConfig(Path("unused"), overlap_steps=True, **options)
        return assemble_core(config, backend, self.window, VOCAB_SIZE)

    def _compute(self, span: Span) -> list[int]:
        assert span.num_tokens > 0
        values = []
        for position, token_id in zip(span.positions, span.token_ids, strict=True):
            first = max(0, position - self.window + 1)
            full = [self.kv[self._place(span.slot.full_blocks, p)] for p in range(position)]
            window = [
                self.kv[self._place(span.slot.window_blocks, p)] for p in range(first, position)
            ]
            value = kv_value(token_id, position, full, window)
            values.append(value)
            self.kv[self._place(span.slot.full_blocks, position)] = value
            self.kv[self._place(span.slot.window_blocks, position)] = value + 1
        return values

    def _place(self, table: list[int], position: int) -> tuple[int, int]:
        block = table[position // self.block_size]
        assert block != NULL_BLOCK, f"position {position} was given back and is still needed"
        return block, position % self.block_size


@pytest.fixture
def make_model() -> Callable[..., HashModel]:
    return HashModel


class LateBackend:
    """Computes a step when it is collected and no sooner: a device that is as far behind as can be.

    What a step loads from the host and does not need comes when it has computed all else.

    Whatever the core reads or changes too early then shows as a wrong token.
    """

    def __init__(
        self,
        inner: Backend,
        move: Callable[[Sequence_[Move]], None] = lambda moves: None,
        *,
        takes_steady: bool = False,
    ) -> None:
        self._inner, self.move, self._takes_steady = inner, move, takes_steady
        self._queue: list[LateStep] = []

    access = None

    @property
    def capacity(self) -> Capacity:
        return replace(self._inner.capacity, takes_steady=self._takes_steady)

    def close(self) -> None: ...

    def launch(self, batch: Batch) -> LateStep:
        step = LateStep(self, batch)
        self._queue.append(step)
        assert len(self._queue) <= 2, "more than one step ahead"
        return step

    def compute(self, last: LateStep) -> None:
        """Compute the steps up to that one, in order."""
        while last in self._queue:
            self._queue.pop(0).compute(self._inner)


def _is_load(move: Move) -> bool:
    return not move.is_save


class LateStep:
    """A step in the queue; its error comes out when it is collected."""

    def __init__(self, backend: LateBackend, batch: Batch) -> None:
        self._backend, self._batch = backend, batch
        self._masks: dict[int, TokenMasks] | None = None
        self._sampled: list[Sampled] = []
        self._tokens: list[tuple[int, ...]] = []  # of steady rows
        self._error: Exception | None = None

    def mask(self, masks: Mapping[int, TokenMasks]) -> None:
        assert self._masks is None, "masks come once"
        self._masks = {row: mask.copy() for row, mask in masks.items()}

    def compute(self, backend: Backend) -> None:
        batch = self._batch
        later = [] if batch.needs_moves else [*takewhile(_is_load, reversed(batch.moves))][::-1]
        sooner = batch.moves[: len(batch.moves) - len(later)]
        steady = [] if batch.steady is None else batch.steady.rows()
        rows = (*steady, *batch.rows)
        try:
            step = backend.launch(batch._replace(rows=rows, moves=sooner, steady=None))
            if any(row.is_masked for row in batch.rows):
                assert self._masks is not None, "masks come before the step is collected"
                step.mask({len(steady) + row: mask for row, mask in self._masks.items()})
            sampled = step.collect()
            num = len(steady)
            self._sampled, self._tokens = sampled[num:], [one.token_ids for one in sampled[:num]]
            if later:
                self._backend.move(later)
        except Exception as error:
            self._error = error

    def collect(self) -> list[Sampled]:
        self._backend.compute(self)
        if self._error is None:
            return self._sampled
        try:
            raise self._error
        finally:
            self._error = None  # its frames hold what the step held

    def steady_tokens(self) -> list[int]:
        return [-1 if not token_ids else token_ids[0] for token_ids in self._tokens]


@pytest.fixture(params=["simple", "overlapped", "steady"])
def loop_kind(request: pytest.FixtureRequest) -> str:
    """All loops must give the same; the overlapped one over a device that is behind, which takes
    steady rows or does not."""
    return str(request.param)


@pytest.fixture
def is_overlapped(loop_kind: str) -> bool:
    return loop_kind != "simple"


@pytest.fixture
def on_device(loop_kind: str) -> Callable[[HashModel], Backend]:
    """on_device(model)"""

    def make(model: HashModel) -> Backend:
        if loop_kind == "simple":
            return model.backend()
        return LateBackend(model.backend(), model.move, takes_steady=loop_kind == "steady")

    return make


@pytest.fixture
def assemble(
    is_overlapped: bool, on_device: Callable[[HashModel], Backend]
) -> Callable[[NativeConfig, HashModel], EngineCore]:
    """assemble(config, model)"""

    def make(config: NativeConfig, model: HashModel) -> EngineCore:
        config = replace(config, overlap_steps=is_overlapped)
        core = assemble_core(config, on_device(model), model.window, VOCAB_SIZE)
        core.puts_off = False  # which steps there are does not depend on the machine's speed
        return core

    return make


@pytest.fixture
def make_core(
    is_overlapped: bool, on_device: Callable[[HashModel], Backend]
) -> Iterator[Callable[..., EngineCore]]:
    """make_core(**limits and model fields); the blocks are checked when the test ends."""
    cores: list[EngineCore] = []

    def make(**options: Any) -> EngineCore:
        limits = {
            "max_model_len": options.get("max_model_len", 200),
            "max_num_seqs": options.pop("max_num_seqs", 8),
            "max_num_batched_tokens": options.pop("max_num_batched_tokens", 16),
            "max_token_gap_s": options.pop("max_token_gap_s", None),
        }
        is_prefix_caching = options.pop("is_prefix_caching", True)
        extra = options.pop("extra", ())
        model = HashModel(**options)
        backend = on_device(model)
        blocks = BlockManager(
            model.num_blocks,
            BLOCK_SIZE,
            WINDOW,
            is_prefix_caching=is_prefix_caching,
        )
        scheduler = Scheduler(blocks, SchedulerLimits(**limits, max_drafts=8))
        core = EngineCore(
            backend, scheduler, VOCAB_SIZE, is_overlapped=is_overlapped, errors=TorchErrors()
        )
        core.puts_off = False
        core.use([*options_of_backend(NativeConfig(Path()), backend.capacity), *extra])
        cores.append(core)
        return cores[-1]

    yield make
    for core in cores:
        core.scheduler.blocks.check_integrity()
        if not core.scheduler.has_work:
            assert core.stats().num_free_kv_blocks == core.stats().num_kv_blocks


@pytest.fixture(scope="session")
def make_request() -> Callable[..., EngineRequest]:
    """make_request(prompt, max_tokens, **sampling); greedy unless a temperature is given."""
    numbers = count()

    def make(prompt: Sequence_[int], max_tokens: int = 8, **options: Any) -> EngineRequest:
        outer = {key: options.pop(key) for key in OUTER if key in options}
        sampling = SamplingParams(max_tokens, **{"temperature": 0.0, **options})
        outer.setdefault("request_id", f"r{next(numbers)}")
        return EngineRequest(prompt_token_ids=tuple(prompt), sampling=sampling, **outer)

    return make


@pytest.fixture
def greedy_answer() -> Callable[[Sequence_[int], int], list[int]]:
    """The right tokens for a prompt, computed without blocks."""

    def answer(prompt: Sequence_[int], max_tokens: int) -> list[int]:
        token_ids: list[int] = list(prompt)
        values: list[int] = []
        while len(token_ids) < len(prompt) + max_tokens:
            for position in range(len(values), len(token_ids)):
                window = [v + 1 for v in values[max(0, position - WINDOW + 1) : position]]
                values.append(kv_value(token_ids[position], position, values, window))
            token_ids.append(int(logits_of(values[-1]).argmax()))
        return token_ids[len(prompt) :]

    return answer


@pytest.fixture
def run_all() -> Callable[..., dict[str, list[int]]]:
    """Step a core until it has no work; every request's new tokens by request id."""

    def run(core: EngineCore, max_steps: int = 3000) -> dict[str, list[int]]:
        answers: dict[str, list[int]] = {}
        for _ in range(max_steps):
            if not core.has_work:
                core.scheduler.blocks.check_integrity()
                return answers
            for sequence, event in core.step():
                assert isinstance(event, TokenEvent), event
                answers.setdefault(sequence.request.request_id, []).extend(event.token_ids)
            core.scheduler.blocks.check_integrity()
        raise AssertionError(f"still at work after {max_steps} steps")

    return run


@pytest.fixture
def make_sequence(make_request: Callable[..., EngineRequest]) -> Callable[..., Sequence]:
    """make_sequence(prompt) as the block manager meets it."""
    return lambda prompt, **options: Sequence(make_request(prompt, 100, **options), 1000)


@pytest.fixture
def make_slot(make_request: Callable[..., EngineRequest]) -> Callable[..., Slot]:
    """make_slot(prompt, generated, **sampling) as the sampler meets it."""

    def make(prompt: Sequence_[int] = (1,), generated: Sequence_[int] = (), **options: Any) -> Slot:
        sequence = Sequence(make_request(prompt, 100, **options), 1000)
        tokens = (*prompt, *generated)
        return Slot(SlotStart(0, tokens, len(prompt), (), (), sequence.sampling, sequence.seed))

    return make
