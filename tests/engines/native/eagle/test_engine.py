"""The engine with a head: the same tokens as without one, sooner where the head is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines.base import EngineRequest, SamplingParams, TokenEvent
from engines.native.assemble import assemble_core
from engines.native.backends.base import TokenMask, TokenMasks
from engines.native.backends.cpu.backend import CpuBackend
from engines.native.config import ModelConfig, NativeConfig
from engines.native.loop.core import EngineCore
from engines.native.loop.sequence import Sequence
from tests.engines.native.eagle.agreeing import (
    after,
    make_certain,
    probabilities,
    write_agreeing_head,
)
from tests.engines.native.eagle.conftest import TARGET
from tests.engines.native.small_model import write_small

LONG = [(17 * i * i + 5) % 60 for i in range(45)]
PROMPTS = [LONG, LONG[:21], [3], [*LONG[:40], 9, 8], [7] * 20]
Request = tuple[list[int], dict[str, Any]]


@pytest.fixture(scope="module")
def certain(folders: Any) -> tuple[Path, Path]:
    """A target that a head can guess, and that head."""
    model = write_small(folders.heads / "certain", TARGET, make_certain)
    return model, write_agreeing_head(folders.heads / "agreeing", TARGET)


def core_of(model: Path, head: Path | None, *, is_free: bool = False, **options: Any) -> EngineCore:
    """`is_free`: guesses cost next to nothing, so that always some are verified."""
    options = {"block_size": 4, "num_kv_blocks": 300, "max_num_seqs": 8, **options}
    if head is not None:
        options |= {"speculation": "eagle3", "draft_dir": head}
    config, shape = NativeConfig(model, **options), ModelConfig.from_dir(model)
    backend = CpuBackend.load(config, shape)
    if is_free:
        backend._capacity = replace(backend.capacity, step_cost=lambda _, num: 1 + 0.01 * num)
    return assemble_core(config, backend, shape.sliding_window, shape.vocab_size)


def add(
    core: EngineCore, name: str, prompt: list[int], guide: Any = None, **sampling: Any
) -> Sequence:
    sampling = {"max_tokens": 24, "temperature": 0.0, **sampling}
    request = EngineRequest(name, tuple(prompt), SamplingParams(**sampling))
    return core.scheduler.add(request, guide)


def events_of(core: EngineCore) -> list[tuple[str, TokenEvent]]:
    events = []
    while core.has_work:
        for sequence, event in core.step():
            assert isinstance(event, TokenEvent), event
            events.append((sequence.request.request_id, event))
        core.scheduler.blocks.check_integrity()
    stats = core.stats()
    assert stats.num_free_kv_blocks == stats.num_kv_blocks
    return events


def answers(core: EngineCore, requests: list[Request]) -> list[list[int]]:
    for i, (prompt, sampling) in enumerate(requests):
        add(core, str(i), prompt, **sampling)
    found: list[list[int]] = [[] for _ in requests]
    for name, event in events_of(core):
        found[int(name)] += event.token_ids
    return found


GREEDY: list[Request] = [(prompt, {}) for prompt in PROMPTS]
SEEDED: list[Request] = [
    (prompt, {"temperature": 1.0, "seed": i, "logprobs": 1}) for i, prompt in enumerate(PROMPTS)
]
FEW = {"max_num_seqs": 2}  # of more, guesses pay only once a head has been right for a while
TIGHT = {
    "num_kv_blocks": 40,
    "max_num_batched_tokens": 16,
    "max_model_len": 80,
    "overlap_steps": True,
}
ROOM = [pytest.param(FEW, marks=pytest.mark.slow), TIGHT]


@pytest.mark.parametrize("options", ROOM, ids=["few", "tight"])
def test_a_random_head_changes_no_token_and_is_switched_off(
    folders: Any, options: dict[str, Any]
) -> None:
    head = folders.head("random")
    for requests in (GREEDY, SEEDED):
        expected = answers(core_of(folders.model, None), requests)
        core = core_of(folders.model, head, **options)
        assert answers(core, requests) == expected
        stats = core.stats()
        assert 0 < stats.draft_tokens < stats.generated_tokens / 2
        if options is TIGHT:
            assert stats.num_preemptions > 0


@pytest.mark.parametrize("options", ROOM, ids=["few", "tight"])
def test_a_head_that_is_right_brings_several_tokens_a_step(
    certain: tuple[Path, Path], options: dict[str, Any]
) -> None:
    model, head = certain
    for requests in (GREEDY, SEEDED):
        expected = answers(core_of(model, None), requests)
        core = core_of(model, head, **options)
        assert answers(core, requests) == expected
        stats = core.stats()
        share = stats.accepted_draft_tokens / stats.draft_tokens
        assert share == 1.0 if requests is GREEDY else 0.0 < share < 0.9
    assert expected != answers(core_of(model, None), GREEDY)  # draws are no certainty


def test_guesses_save_steps(certain: tuple[Path, Path]) -> None:
    model, head = certain
    core = core_of(model, head)
    add(core, "a", [3], max_tokens=60)
    events = events_of(core)
    assert max(len(event.token_ids) for _, event in events) >= 5
    tokens = [token for _, event in events for token in event.token_ids]
    assert tokens == [after(token) for token in [3, *tokens[:-1]]]
    assert core.stats().num_steps < 25


def test_prefix_hits_change_neither_tokens_nor_guesses(certain: tuple[Path, Path]) -> None:
    model, head = certain
    core = core_of(model, head)
    first = answers(core, [(LONG, {})])
    steps, drafts = core.stats().num_steps, core.stats().draft_tokens
    assert answers(core, [(LONG, {})]) == first
    stats = core.stats()
    assert stats.prefix_cache_hits == 44
    assert (stats.num_steps - steps, stats.draft_tokens - drafts) == (steps, drafts)


def test_a_heads_blocks_come_back_from_host_memory(certain: tuple[Path, Path]) -> None:
    """With them it guesses as well as if the prefix had stayed."""
    model, head = certain
    room: dict[str, Any] = {"num_kv_blocks": 60, "max_model_len": 80, "host_kv_bytes": 4 << 20}
    core = core_of(model, head, **room)
    first = answers(core, [(LONG, {})])
    drafts, right = core.stats().draft_tokens, core.stats().accepted_draft_tokens
    for token in range(4):
        answers(core, [([token] * 50, {})])
    before = core.stats()
    assert answers(core, [(LONG, {})]) == first
    stats = core.stats()
    assert stats.host_cache_hits == 44
    assert stats.draft_tokens - before.draft_tokens == drafts
    assert stats.accepted_draft_tokens - before.accepted_draft_tokens == right


def test_an_abort_disturbs_nobody(certain: tuple[Path, Path]) -> None:
    model, head = certain
    expected = answers(core_of(model, None), SEEDED)
    core = core_of(model, head, overlap_steps=True)
    leaving = [add(core, f"leaving {i}", prompt) for i, prompt in enumerate(PROMPTS)]
    for i, (prompt, sampling) in enumerate(SEEDED):
        add(core, str(i), prompt, **sampling)
    found: list[list[int]] = [[] for _ in SEEDED]
    while core.has_work:
        for sequence, event in core.step():
            assert isinstance(event, TokenEvent)
            if sequence in leaving:
                core.scheduler.remove(sequence)
            else:
                found[int(sequence.request.request_id)] += event.token_ids
        core.scheduler.blocks.check_integrity()
    assert found == expected


def test_penalties_and_a_bias_are_heeded(certain: tuple[Path, Path]) -> None:
    model, head = certain
    requests: list[Request] = [
        ([3], {"repetition_penalty": 1.5}),
        ([3], {"min_tokens": 5}),
        ([3], {"logit_bias": {after(after(3)): -100.0}}),
        ([3], {"temperature": 1.0, "seed": 3, "top_k": 3}),
    ]
    expected = answers(core_of(model, None), requests)
    assert answers(core_of(model, head), requests) == expected


class WithoutThirds:
    """A grammar of tokens that three does not divide."""

    taken: list[int]

    def __init__(self) -> None:
        self.taken = []

    def fill(self, mask: TokenMask) -> None:
        mask.fill(0)
        for token in range(60):
            if token % 3:
                mask.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)

    def fill_along(self, masks: TokenMasks, drafts: tuple[int, ...]) -> int:
        for mask in masks:
            self.fill(mask)
        return next((i for i, draft in enumerate(drafts) if draft % 3 == 0), len(drafts))

    def accept(self, token_id: int) -> None:
        self.taken.append(token_id)


@pytest.mark.parametrize("overlap_steps", [False, True])
def test_a_grammar_cuts_guesses_and_holds(certain: tuple[Path, Path], overlap_steps: bool) -> None:
    model, head = certain
    taken = []
    for core in (core_of(model, None), core_of(model, head, overlap_steps=overlap_steps)):
        guide = WithoutThirds()
        add(core, "a", [3], guide, max_tokens=40)
        events_of(core)
        taken.append(guide.taken)
    assert taken[0] == taken[1]
    assert len(taken[1]) == 40
    assert all(token % 3 for token in taken[1])
    assert core.stats().accepted_draft_tokens > 5


@pytest.mark.parametrize("kind", ["agreeing", pytest.param("random", marks=pytest.mark.slow)])
def test_tokens_have_the_distribution_of_the_target(
    certain: tuple[Path, Path], folders: Any, kind: str
) -> None:
    """Chi-square over the ranks of the drawn tokens: the target is a Markov chain."""
    model, agreeing = certain
    head = agreeing if kind == "agreeing" else folders.head("random")
    core = core_of(model, head, is_free=True, max_num_seqs=32)
    sampling = {"temperature": 1.0, "max_tokens": 12}
    drawn = answers(core, [([i % 60], {**sampling, "seed": i}) for i in range(128)])
    texts = torch.tensor([[i % 60, *tokens] for i, tokens in enumerate(drawn)])
    before, came = texts[:, :-1].flatten(), texts[:, 1:].flatten()
    order = probabilities().argsort(-1, descending=True)
    ranks = order.argsort(-1)[before, came] // 3  # so that none is too rare
    expected = probabilities().gather(1, order)[before].sum(0).view(20, 3).sum(1).numpy()
    counted = np.bincount(ranks, minlength=20)
    assert expected.min() > 5
    statistic = float(((counted - expected) ** 2 / expected).sum())
    assert statistic < 43.9  # 19 degrees of freedom: one of 1,000 is above
    stats = core.stats()
    assert stats.draft_tokens > 100
    if kind == "agreeing":
        assert stats.accepted_draft_tokens > 250
