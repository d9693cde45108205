"""Ranks that compute together give what one gives, and tell who is missing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.errors import EngineStartError
from engines.native.backends.base import RankLost, StepErrors
from engines.native.backends.cpu import exchange
from engines.native.backends.cpu.backend import TorchModel
from engines.native.backends.cpu.exchange import Alone, RankExchange
from engines.native.backends.cpu.ranks.team import check_alike
from engines.native.backends.torch_errors import TorchErrors
from engines.native.config import ModelConfig
from tests.close import assert_close
from tests.engines.native.ranks.conftest import config_of, exchanges, logits_of, on_all

CHUNKS = [[*range(3, 40)], [5], [7, 9, 11], [2] * 20, [1]]


@pytest.fixture(scope="module")
def alone(model_dir: Path) -> torch.Tensor:
    return logits_of(config_of(model_dir, 1), CHUNKS)


@pytest.mark.parametrize(("size", "by_expert"), [(2, False), (2, True), (4, False), (4, True)])
def test_logits_are_those_of_one_rank_but_for_rounding(
    size: int, by_expert: bool, model_dir: Path, alone: torch.Tensor
) -> None:
    found = logits_of(config_of(model_dir, size, by_expert), CHUNKS)
    assert_close(found, alone, rtol=1e-5, atol=1e-4)
    assert torch.equal(found.argmax(1), alone.argmax(1))


def test_experts_that_few_tokens_choose_are_computed_by_their_rank(
    model_dir: Path, alone: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engines.native.backends.cpu import layers

    monkeypatch.setattr(layers, "_MAX_COPIED", 0)  # as of 20b: sorted by expert
    found = logits_of(config_of(model_dir, 4, by_expert=True), CHUNKS)
    assert_close(found, alone, rtol=1e-5, atol=1e-4)


def test_a_rounded_checkpoint_is_rounded_the_same_on_every_rank(model_dir: Path) -> None:
    one = logits_of(config_of(model_dir, 1, quantize="mxfp4"), CHUNKS)
    assert_close(
        logits_of(config_of(model_dir, 2, quantize="mxfp4"), CHUNKS), one, rtol=1e-5, atol=1e-4
    )


def test_blocks_are_as_many_on_every_rank_as_on_one_and_a_rank_has_its_heads(
    model_dir: Path,
) -> None:
    def load(each: RankExchange, size: int) -> TorchModel:
        options: dict[str, Any] = {"num_kv_blocks": None, "max_model_len": 256}
        options["host_kv_bytes"] = 1 << 20
        config = config_of(model_dir, size, **options)
        return TorchModel(config, ModelConfig.from_dir(model_dir), each)

    one = load(Alone(), 1)
    with exchanges(4) as ranks:
        found = on_all(ranks, lambda each: load(each, 4))
    for rank in found:
        assert rank.capacity.num_blocks == one.capacity.num_blocks
        host, whole = rank.capacity.host, one.capacity.host
        assert host is not None
        assert whole is not None
        assert (host.num_blocks, host.block_bytes) == (whole.num_blocks, whole.block_bytes)
        assert 4 * rank.block_tensors[0].nbytes == one.block_tensors[0].nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_rank_gets_the_same_bits_of_a_sum(dtype: torch.dtype) -> None:
    parts = torch.randn(4, 5, 33, generator=torch.Generator().manual_seed(0)).to(dtype)
    with exchanges(4) as ranks:
        found = on_all(ranks, lambda each: each.sum(parts[each.rank].clone()))
    exact = sum((part.float() for part in parts), torch.zeros(5, 33)).to(dtype)
    assert all(torch.equal(each, exact) for each in found)


def test_the_first_rank_gets_the_columns_of_all_in_their_order() -> None:
    whole = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    parts = whole.split((3, 3, 2, 2), 1)
    with exchanges(4) as ranks:
        first, *_ = on_all(ranks, lambda each: each.join(parts[each.rank]))
        none = on_all(ranks, lambda each: each.join(torch.empty(0, 4)))
    assert torch.equal(first, whole)
    assert all(not len(each) for each in none)


def test_what_the_first_rank_decides_holds_once_all_have_come_to_it() -> None:
    come: list[int] = []

    def work(each: RankExchange) -> int:
        come.append(each.rank)
        return each.agree(lambda: 10 * len(come))

    with exchanges(3) as ranks:
        assert on_all(ranks, work) == [30] * 3


def test_a_rank_that_is_gone_ends_the_engine_and_is_named() -> None:
    with exchanges(3) as ranks:
        first, _, third = ranks
        third._first.close()  # type: ignore[attr-defined]

        def work(each: RankExchange) -> torch.Tensor:
            return each.sum(torch.ones(2, 2))

        with pytest.raises(RankLost, match="rank 2 of 3 has ended") as raised:
            on_all([first, ranks[1]], lambda each: work(each) if each is first else _send(each))
    assert TorchErrors().is_lasting(raised.value)
    assert StepErrors().is_lasting(raised.value)


def test_a_slow_rank_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exchange, "_SLOW_S", 0.0)
    with exchanges(2) as ranks:

        def work(each: RankExchange) -> torch.Tensor:
            while each.rank == 1 and not caplog.records:
                time.sleep(0.001)
            return each.sum(torch.ones(2, 2))

        found = on_all(ranks, work)
    assert torch.equal(found[1], torch.full((2, 2), 2.0))
    assert "Rank 1 of 2 has kept the others waiting" in caplog.text


def _send(each: RankExchange) -> torch.Tensor:
    each._first.send_bytes(bytes(16))  # type: ignore[attr-defined]
    return torch.empty(0)


def test_ranks_that_differ_are_told_by_name_and_number() -> None:
    own = {"Harmonium": "1", "PyTorch": "2.13", "config.json": "{\n}"}
    check_alike(own, [own, dict(own)])
    with pytest.raises(
        EngineStartError, match=r"PyTorch of rank 2 is not .* \(2.13, and there 3\)"
    ):
        check_alike(own, [own, own | {"PyTorch": "3"}])
    with pytest.raises(EngineStartError, match=r"config.json of rank 1 is not that of the first"):
        check_alike(own, [own | {"config.json": "{\n }"}, own])
