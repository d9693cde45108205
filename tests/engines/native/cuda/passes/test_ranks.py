"""A model on several ranks gives what the same model gives on one GPU, but for rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engines.errors import EngineStartError
from tests.engines.native.cuda.kernels.kernel_fixtures import DEVICE, IS_GPU, model_config
from tools.benchmarks.published import write_published

from engines.base import TokenEvent  # isort: skip
from engines.native.backends.cuda import loading  # isort: skip
from engines.native.backends.cuda.card import KNOWN, Card  # isort: skip
from engines.native.backends.cuda.ranks import pace  # isort: skip
from engines.native.config import ModelConfig  # isort: skip
from tests.engines.native.cuda.engine_case import generate  # isort: skip
from tests.engines.native.cuda.passes.ranks_case import (  # isort: skip
    at_once, core_of, options, small,
)  # fmt: skip

SIZE = 2
PROMPTS = [[5, 9, 3], [*range(7, 25)]]  # the second in chunks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    write_published(folder, small(model_config(2)), DEVICE)
    return folder


def test_one_rank_has_the_embedding_and_each_a_part_of_the_head(folder: Path) -> None:
    model = ModelConfig.from_dir(folder)
    whole = loading.LayerParts(options(folder, 1), model).weights(64, [DEVICE])[0]
    ranks = loading.RankParts(options(folder, SIZE), model).weights(64, [DEVICE] * SIZE)
    assert torch.equal(torch.cat([each.head for each in ranks]), whole.head)
    assert [len(each.embedding) for each in ranks] == [0, model.vocab_size]


@pytest.mark.parametrize(
    ("given", "says"),
    [({"num_gpus": 1}, "tensor_parallel is 2 and num_gpus 1; each rank has a GPU of its own"),
     ({"expert_parallel": 2}, "expert_parallel is 2; on GPUs each expert is split: use 1")],
)  # fmt: skip
def test_a_split_that_gpus_do_not_have_is_refused(given: dict[str, int], says: str) -> None:
    with pytest.raises(EngineStartError, match=says):
        options(Path(), SIZE, **given)


def test_gpus_that_cannot_reach_each_other_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: SIZE)
    monkeypatch.setattr(Card, "of", lambda _: KNOWN[90])
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: False)
    with pytest.raises(EngineStartError, match="GPU 0 cannot reach the memory of GPU 1"):
        loading.devices_of(options(Path(), SIZE))


def test_a_gpu_that_is_slower_than_the_others_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    devices = [torch.device("cuda", index) for index in range(3)]
    times = {0: [3e-4, 1e-4, 1e-4], 1: [1e-4, 1.5e-4, 1.6e-4], 2: [1.1e-4] * 3}
    monkeypatch.setattr(pace, "_rounds_s", lambda device: times[device.index])
    pace.tell_slow(devices)
    [line] = caplog.messages
    assert "GPU 1 moves 3579 GB/s and the fastest of its ranks 5369" in line
    assert "nvidia-smi" in line


def told(events: list[TokenEvent]) -> torch.Tensor:
    """The log-probabilities of the first answers' tokens."""
    found = sorted(of.logprob for event in events for of in event.logprobs or ())
    return torch.tensor(found)


@pytest.mark.slow
@pytest.mark.skipif(IS_GPU and torch.cuda.device_count() < SIZE, reason="needs two GPUs")
def test_tokens_and_log_probabilities_are_those_of_one_gpu(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {"temperature": 0, "logprobs": 2}
    whole, events = generate(core_of(options(folder, 1)), PROMPTS, 3, **asked)
    with at_once(SIZE, monkeypatch):
        split, others = generate(core_of(options(folder, SIZE)), PROMPTS, 3, **asked)
    assert split == whole
    assert told(others) == pytest.approx(told(events), abs=0.03)
