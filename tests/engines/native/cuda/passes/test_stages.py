"""A model in stages gives what the same model gives on one GPU, to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from engines.errors import EngineStartError
from tests.engines.native.cuda.kernels.kernel_fixtures import (
    DEVICE,
    IS_GPU,
    ON_GPU_ONLY,
    model_config,
)
from tests.engines.speculation import NGRAM
from tools.benchmarks.published import write_published

from tools.benchmarks.random_model import random_weights  # isort: skip
from engines.base import TokenEvent  # isort: skip
from engines.prompt_logprobs import packed_in, unpacked  # isort: skip
from engines.native.backends.cuda import loading  # isort: skip
from engines.native.backends.cuda.card import KNOWN, Card  # isort: skip
from engines.native.backends.cuda.memory.room import work_bytes  # isort: skip
from engines.native.config import ModelConfig, NativeConfig, Speculation  # isort: skip
from engines.native.kv_pool import block_bytes, layers_per_group  # isort: skip
from engines.native.layer_split import part_of, split_layers  # isort: skip
from tests.engines.native.cuda.engine_case import EngineCase, generate  # isort: skip

NUM_LAYERS = 4 if IS_GPU else 2
LENGTHS = [1, 300, 700, 40] if IS_GPU else [3, 18]
NUM_TOKENS = 48 if IS_GPU else 2


@pytest.mark.parametrize(
    ("num_layers", "num_parts", "sizes"),
    [(36, 1, [36]), (36, 2, [18, 18]), (36, 4, [9, 9, 9, 9]), (36, 5, [7, 7, 8, 7, 7]),
     (3, 2, [1, 2]), (24, 7, [3, 3, 4, 4, 4, 3, 3])],
)  # fmt: skip
def test_layers_are_split_evenly_with_more_in_the_middle(
    num_layers: int, num_parts: int, sizes: list[int]
) -> None:
    split = split_layers(num_layers, num_parts)
    assert [layer for layers in split for layer in layers] == [*range(num_layers)]
    assert [len(layers) for layers in split] == sizes


def test_a_part_has_its_layers_kinds() -> None:
    model = model_config(5)
    part = part_of(model, range(1, 4))
    assert part.num_hidden_layers == 3
    assert part.layer_types == model.layer_types[1:4]
    assert replace(part, num_hidden_layers=5, layer_types=model.layer_types) == model


def cases(num_stages: int, speculation: Speculation = "none") -> list[EngineCase]:
    """The same model on one GPU and in stages."""
    config, longest = model_config(NUM_LAYERS), 1024 if IS_GPU else 64
    weights = random_weights(config, longest, DEVICE)
    return [
        EngineCase(
            config, weights, 400 if IS_GPU else 32, longest, chunk=256 if IS_GPU else 8,
            max_num_seqs=4 if IS_GPU else 2, speculation=speculation,
            are_guesses_free=speculation != "none", num_stages=stages,
        )
        for stages in (1, num_stages)
    ]  # fmt: skip


def answered(
    case: EngineCase, prompts: list[list[int]], num_tokens: int, **sampling: object
) -> list[tuple[list[list[int]], list[str]]]:
    """Tokens and their log-probabilities, then those of the same prompts from the cache."""
    core, found = case.core(), []
    for _ in range(2):
        tokens, events = generate(core, prompts, num_tokens, **sampling)
        found.append((tokens, sorted(map(_bits, events))))
    assert max(event.num_cached_tokens for event in events) >= 16
    return found


def _bits(event: TokenEvent) -> str:
    return repr((event.token_ids, event.logprobs))


@pytest.mark.parametrize(
    "num_stages", [2, 4] if IS_GPU else [pytest.param(2, marks=pytest.mark.slow)]
)
def test_stages_give_the_bits_of_the_whole_model(num_stages: int) -> None:
    whole, split = cases(num_stages)
    prompts = whole.prompts(1, LENGTHS)
    asked: dict[str, object] = {"temperature": 1.0, "seed": 7, "logprobs": 2}
    assert answered(split, prompts, NUM_TOKENS, **asked) == answered(
        whole, prompts, NUM_TOKENS, **asked
    )


@pytest.mark.slow
def test_guesses_are_verified_in_stages() -> None:
    whole, split = cases(2, NGRAM)
    prompts = [[3] * 20]
    # The bias makes every guess right; log-probabilities are told without it.
    asked: dict[str, object] = {"temperature": 0, "logit_bias": {3: 1000.0}, "logprobs": 2}
    assert answered(split, prompts, 6, **asked) == answered(whole, prompts, 6, **asked)


@pytest.mark.slow
def test_a_prompt_has_the_same_log_probabilities_in_stages() -> None:
    asked: dict[str, object] = {"temperature": 0, "prompt_logprobs": 2}
    whole, split = cases(2)
    prompts = whole.prompts(5, LENGTHS[-1:])
    told = []
    for case in (whole, split):
        _, events = generate(case.core(), prompts, 1, **asked)
        parts = [packed for event in events if (packed := packed_in(event)) is not None]
        assert parts
        told.append([unpacked(each, prompts[0]) for each in parts])
    assert [*map(list, told[0])] == [*map(list, told[1])]


@ON_GPU_ONLY
def test_a_prompt_in_many_chunks_passes_the_stages_in_turn() -> None:
    whole, split = cases(2)
    prompts = whole.prompts(3, [1000])
    answers = [generate(case.core(), prompts, 8, temperature=0)[0] for case in (whole, split)]
    assert answers[0] == answers[1]


def test_there_are_as_many_blocks_as_the_fullest_gpu_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_published(tmp_path, replace(model_config(3), intermediate_size=32), torch.device("cpu"))
    model = ModelConfig.from_dir(tmp_path)
    config = NativeConfig(
        tmp_path, "cuda", "bfloat16", num_gpus=2, max_num_seqs=16, block_size=16, max_model_len=64,
        memory_fraction=0.9,
    )  # fmt: skip
    shapes = [part_of(model, layers) for layers in split_layers(3, 2)]
    total, rooms = 40 * 10**9, (40, 30)  # blocks that either GPU has room for
    free = [
        total // 10 + work_bytes(shape, config) + room * block_bytes(shape, config)
        for shape, room in zip(shapes, rooms, strict=True)
    ]
    monkeypatch.setattr(loading, "check_computable", lambda *_: None)
    monkeypatch.setattr(loading, "check_room", lambda *_: None)
    monkeypatch.setattr(loading, "devices_of", lambda _: [DEVICE, DEVICE])
    monkeypatch.setattr(
        loading, "CudaBackend", lambda _, parts, capacity, *_2, **_3: (parts, capacity)
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free.pop(0), total))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: total - free[0])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    parts, capacity = cast(Any, loading.load_cuda(config, model))
    assert capacity.num_blocks == min(rooms)
    for part, shape in zip(parts, shapes, strict=True):
        assert part.config == shape
        assert len(part.weights.layers) == shape.num_hidden_layers
        assert part.cache.shape[:2] == (layers_per_group(shape), min(rooms))


def test_gpus_that_are_not_there_or_not_alike_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config = NativeConfig(Path(), "cuda", "bfloat16", num_gpus=2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(EngineStartError, match="num_gpus is 2, and 1 of them can be seen"):
        loading.devices_of(config)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cards = [KNOWN[80], KNOWN[89]]
    monkeypatch.setattr(Card, "of", lambda device: cards[device.index])
    with pytest.raises(EngineStartError, match="NVIDIA A100-SXM4-80GB and NVIDIA L40S"):
        loading.devices_of(config)
    cards[1] = cards[0]
    assert [device.index for device in loading.devices_of(config)] == [0, 1]
