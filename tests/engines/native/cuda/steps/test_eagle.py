"""An EAGLE3 head on the device: its guesses are those of the published forward in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.base import SamplingParams
from engines.errors import EngineStartError
from engines.native.backends.base import Batch, Row, SlotStart
from engines.native.backends.cuda.steps.buffers import Rows, SlotTensors
from engines.native.eagle.checkpoint import load_eagle
from engines.native.eagle.config import EagleConfig
from engines.native.eagle.head import EagleHead
from tests.engines.native.cuda.kernels.kernel_fixtures import (
    DEVICE,
    IS_GPU,
    ON_GPU_ONLY,
    model_config,
)
from tests.engines.native.eagle.reference import (
    ReferenceHead,
    Tensors,
    head_config,
    head_tensors,
    write_head,
)
from tools.benchmarks.random_heads import HeadShape, knowing_head, random_head

from engines.native.backends.cuda.steps.eagle import DeviceHead, check_head  # isort: skip
from engines.native.backends.cuda.steps.prefill import PrefillBuffers  # isort: skip
from engines.native.backends.cuda.steps.token_runs import TokenRun  # isort: skip
from engines.native.backends.cuda.offline.published import gpt_oss  # isort: skip
from tools.benchmarks.random_model import random_weights  # isort: skip
from engines.native.backends.cuda.steps.shape import Shape  # isort: skip
from engines.native.backends.cuda.steps.verify import Guesses  # isort: skip

from tests.engines.native.cuda.engine_case import EngineCase, generate  # isort: skip

BLOCK, NUM_SLOTS, ROWS = 16, 3, 8
NUM = 3  # guesses
LENGTH = 40  # tokens known at last


class HeadCase:
    """Sequences whose states are random; each position is computed as a step would."""

    def __init__(self, folder: Path) -> None:
        target = replace(gpt_oss("20b", 2), hidden_size=64, vocab_size=64)
        shape = {
            "hidden_size": target.hidden_size,
            "vocab_size": target.vocab_size,
            "num_hidden_layers": target.num_hidden_layers,
        }
        self.config: dict[str, Any] = head_config(
            shape,
            head_dim=16,
            eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1]},
        )
        self.tensors: Tensors = head_tensors(self.config)
        generator = torch.Generator().manual_seed(1)
        self.embedding = torch.randn(target.vocab_size, target.hidden_size, generator=generator)
        write_head(folder, self.config, self.tensors)
        parsed = EagleConfig.from_dir(folder, target)
        weights = load_eagle(
            folder, parsed, torch.float32, DEVICE,
            target_embedding=self.embedding.to(DEVICE), target_head=lambda: self.embedding,
        )  # fmt: skip
        self.slots = SlotTensors.allocate(NUM_SLOTS + 1, 5, DEVICE)
        tables = torch.randperm(15, generator=generator).view(NUM_SLOTS, 5) + 1
        self.slots.full_tables[:NUM_SLOTS] = tables
        self.head = DeviceHead(EagleHead(parsed, weights, 100), 17, BLOCK, self.slots, ROWS, 64)
        self.rows, self.guesses = Rows(ROWS, DEVICE), Guesses(ROWS, DEVICE)
        self.buffers = PrefillBuffers(Shape(target), 64, NUM_SLOTS, DEVICE)
        size = target.vocab_size
        self.texts = torch.randint(0, size, (NUM_SLOTS, LENGTH), generator=generator).tolist()
        width = 2 * target.hidden_size
        self.states = 3 * torch.randn(NUM_SLOTS, LENGTH, width, generator=generator)

    def upload(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    def prefill(self, *parts: tuple[int, int, int]) -> None:
        """Parts (slot, start, end)."""
        runs = [TokenRun(slot, start, self.texts[slot][start:end]) for slot, start, end in parts]
        host = torch.zeros(len(self.buffers.packed), dtype=torch.int32)
        self.buffers.pack(runs, host)
        self.buffers.packed.copy_(host)
        states = torch.cat([self.states[slot, start:end] for slot, start, end in parts])
        self.head.prefill_taps.states[: len(states)] = states.to(DEVICE)
        self.head.after_prefill(64, self.buffers)
        for slot, _, end in parts:
            self.slots.token_ids[slot] = self.texts[slot][end]

    def decode(self, *parts: tuple[int, int, tuple[int, ...]]) -> None:
        """Parts (slot, position, guesses of the tokens after it); the text says which are right."""
        rows = [Row(slot, at, at + 1, True, drafts=drafts) for slot, at, drafts in parts]
        places = [(slot, at + i) for slot, at, drafts in parts for i in range(1 + len(drafts))]
        packed = torch.zeros(3, ROWS, dtype=torch.int32)
        packed[:2, : len(places)] = torch.tensor(places).T
        num = torch.tensor([len(places)], dtype=torch.int32)
        self.rows.packed.copy_(torch.cat((num, packed.flatten())))
        for i, (slot, at) in enumerate(places):
            self.head.decode_taps.states[i] = self.states[slot, at].to(DEVICE)
        if not any(row.drafts for row in rows):
            self.head.after_decode(ROWS, self.rows)
            for slot, at, _ in parts:
                self.slots.token_ids[slot] = self.texts[slot][at + 1]
            return
        self.guesses.packed.copy_(self.guesses.pack(rows))
        self.head.after_verify(ROWS, self.rows, self.guesses)
        for i, (slot, at) in enumerate(places):
            self.rows.sampled[i] = self.texts[slot][at + 1]
        self.head.accept(ROWS, self.rows, self.guesses)
        for slot, at, drafts in parts:
            after = self.texts[slot][at + 1 :]
            num_right = next((i for i, d in enumerate(drafts) if d != after[i]), len(drafts))
            self.slots.token_ids[slot] = after[num_right]

    def expected(self, slot: int, num_known: int) -> list[int]:
        reference = ReferenceHead(self.config, self.tensors, self.embedding)
        states = self.states[slot, : num_known - 1]
        return reference.guesses(self.texts[slot][:num_known], states, NUM)


@pytest.fixture
def case(tmp_path: Path) -> HeadCase:
    return HeadCase(tmp_path / "head")


def test_guesses_after_chunks_decodes_and_guesses_right_and_wrong(case: HeadCase) -> None:
    a, b = case.texts[0], case.texts[1]
    case.prefill((0, 0, 20), (1, 0, 30))
    case.prefill((0, 20, 23))
    case.decode((0, 23, ()), (1, 30, ()))
    wrong = (b[33] + 1) % 60
    case.decode((0, 24, (a[25], a[26])), (1, 31, (b[32], wrong, 5)))
    case.decode((0, 27, ((a[28] + 1) % 60,)), (1, 33, ()))
    guessed = case.head.propose([1, 0], [NUM, NUM], case.upload)
    assert guessed[:, 0].tolist() == case.expected(1, 35)
    assert guessed[:, 1].tolist() == case.expected(0, 29)
    assert len({*guessed.flatten().tolist()}) > 2


def test_who_wants_fewer_leaves_no_trace_beyond(case: HeadCase) -> None:
    case.prefill((0, 0, 15), (1, 0, 30))
    before = case.head._cache.clone()
    guessed = case.head.propose([0, 1], [1, NUM], case.upload)
    assert int(guessed[0, 0]) == case.expected(0, 16)[0]
    assert guessed[:, 1].tolist() == case.expected(1, 31)
    changed = (case.head._cache != before).any(1).view(-1, BLOCK)
    tables = case.slots.full_tables.tolist()
    places = {(tables[0][0], 15), *((tables[1][p // BLOCK], p % BLOCK) for p in (30, 31, 32))}
    found = {(block, at) for block, at in changed.nonzero().tolist() if block}
    assert found == places


def test_who_goes_on_from_a_cached_prefix_guesses_the_same(case: HeadCase) -> None:
    case.prefill((0, 0, 32), (2, 0, 7))
    case.slots.full_tables[1, :2] = case.slots.full_tables[0, :2]
    case.texts[1][:32], case.states[1, :32] = case.texts[0][:32], case.states[0, :32]
    blocks = tuple(case.slots.full_tables[1].tolist())
    start = SlotStart(1, tuple(case.texts[1]), 36, blocks, blocks, SamplingParams(1), 0)
    case.head.start(Batch((start,), (Row(1, 32, 36, is_last=True),)), case.upload)
    case.prefill((1, 32, 36))
    guessed = case.head.propose([1], [NUM], case.upload)
    assert guessed[:, 0].tolist() == case.expected(1, 37)


def test_a_head_that_the_kernel_does_not_compute_is_refused(tmp_path: Path) -> None:
    case = HeadCase(tmp_path / "head")
    config = case.head._head.config
    object.__setattr__(config, "head_dim", 24)
    with pytest.raises(EngineStartError, match="head_dim is 24; on device cuda a power of two"):
        check_head(config)
    object.__setattr__(config, "head_dim", 32)
    object.__setattr__(config, "num_attention_heads", 40)
    with pytest.raises(EngineStartError, match="20 query heads to a K/V head; on device cuda at m"):
        check_head(config)


CIRCLE = 40
SMALL = HeadShape(64, 32, 4, 2, 32) if not IS_GPU else HeadShape(4096, 1024)
LENGTHS = [1, 300, 40, 17] if IS_GPU else [5, 3]
NUM_TOKENS = 100 if IS_GPU else 6


def circle_case(kind: str) -> EngineCase:
    """A model that prefers the next token of a circle, and a head that is right or never."""
    config, longest = model_config(), 1024 if IS_GPU else 64
    weights = random_weights(config, longest, DEVICE)
    following = torch.arange(CIRCLE, device=DEVICE).roll(-1)
    weights.head[following] = 0.1 * weights.embedding[:CIRCLE]
    weights.embedding[:CIRCLE] *= 30
    positions = longest + 16
    if kind == "random":
        head = random_head(config, SMALL, weights.embedding, positions)
    else:
        head = knowing_head(config, SMALL, weights.embedding, following, positions)
    num_blocks, chunk = (400, 256) if IS_GPU else (32, 8)
    return EngineCase(
        config, weights, num_blocks, longest, max_num_seqs=4 if IS_GPU else 2, chunk=chunk,
        speculation="eagle3", head=head, are_guesses_free=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "is_overlapped"),
    [
        pytest.param("knowing", True, marks=() if IS_GPU else pytest.mark.slow),
        pytest.param("knowing", False, marks=ON_GPU_ONLY),
        pytest.param("random", True, marks=ON_GPU_ONLY),
        pytest.param("random", False, marks=ON_GPU_ONLY),
    ],
)
def test_the_engine_gives_the_same_tokens_with_a_head(kind: str, is_overlapped: bool) -> None:
    """Of a text that is certain, for logits may differ in their last bits."""
    case = circle_case(kind)
    prompts = [[(i + j) % CIRCLE for j in range(length)] for i, length in enumerate(LENGTHS)]
    expected = [[(i + length + j) % CIRCLE for j in range(NUM_TOKENS)]
                for i, length in enumerate(LENGTHS)]  # fmt: skip
    for sampling in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 5}):
        core = case.core(is_overlapped=is_overlapped)
        answers, events = generate(core, prompts, NUM_TOKENS, **sampling)
        assert answers == expected
        stats = core.stats()
        assert stats.draft_tokens > 0
        if kind == "knowing":
            assert stats.accepted_draft_tokens > 0.9 * stats.draft_tokens
            assert max(len(event.token_ids) for event in events) >= 3
        else:
            assert stats.draft_tokens < stats.generated_tokens / 2
    again, _ = generate(core, prompts, NUM_TOKENS, temperature=0.0)  # from the prefix cache
    assert again == expected
