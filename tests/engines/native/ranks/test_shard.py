"""Weights are split and merged without loss, and no MXFP4 block is cut."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import EngineStartError
from engines.native.config import ModelConfig, NativeConfig
from engines.native.mxfp4 import BLOCK_SIZE
from engines.native.tensor_parallel.shard import part_of, shard_of, shares, vocabulary_of
from engines.native.tensor_parallel.weights import PartTensors, cut
from engines.native.weights import CheckpointTensors, tensor_specs
from tests.engines.native.ranks.conftest import SHAPE, VOCAB_SIZE, config_of
from tests.engines.native.small_model import small_config
from tests.examples import examples

SPLITS = [(2, False), (2, True), (4, False), (4, True)]
LAYER = "model.layers.1."


@examples(100)
@given(st.integers(0, 3000), st.integers(1, 8))
def test_shares_are_all_there_is_and_nearly_equal(num: int, size: int) -> None:
    found = shares(num, size)
    assert [place for share in found for place in share] == list(range(num))
    assert max(map(len, found)) - min(map(len, found)) <= 1


@examples(100)
@given(size=st.sampled_from([2, 4, 8]), inner=st.integers(8 * BLOCK_SIZE, 4000))
def test_no_block_is_cut_and_every_value_has_one_rank(size: int, inner: int) -> None:
    model = _shape(num_key_value_heads=8, intermediate_size=inner)
    config = NativeConfig(Path("/nowhere"), tensor_parallel=size)
    shards = [shard_of(model, config, rank) for rank in range(size)]
    assert [value for shard in shards for value in shard.inner] == list(range(inner))
    assert all(shard.inner.start % BLOCK_SIZE == 0 for shard in shards)


@examples(100)
@given(size=st.sampled_from([2, 4, 8]), vocab_size=st.integers(130, 201_088))
def test_every_row_of_the_head_has_one_rank(size: int, vocab_size: int) -> None:
    model = _shape(num_key_value_heads=8, intermediate_size=2880, vocab_size=vocab_size)
    config = NativeConfig(Path("/nowhere"), tensor_parallel=size)
    parts = [vocabulary_of(model, shard_of(model, config, rank)) for rank in range(size)]
    assert [row for part in parts for row in part] == list(range(vocab_size))
    assert all(part.start % 16 == 0 for part in parts)


@pytest.mark.parametrize("rank", range(8))
def test_the_columns_of_gpt_oss_are_whole_blocks_on_eight_ranks(rank: int) -> None:
    model = _shape(num_key_value_heads=8, intermediate_size=2880)
    config = NativeConfig(Path("/nowhere"), tensor_parallel=8)
    [experts, _, blocks] = cut(
        f"{LAYER}mlp.experts.down_proj_blocks", model, shard_of(model, config, rank)
    )
    assert experts == slice(0, model.num_local_experts)
    assert blocks.stop - blocks.start in (11, 12)  # of 90


@pytest.mark.parametrize("quantize", [None, "mxfp4"])
@pytest.mark.parametrize(("size", "by_expert"), SPLITS)
def test_the_parts_of_all_ranks_are_the_checkpoint(
    size: int, by_expert: bool, quantize: str | None, model_dir: Path
) -> None:
    config = config_of(model_dir, size, by_expert, quantize=quantize)
    model = ModelConfig.from_dir(model_dir)
    whole = CheckpointTensors(model_dir, tensor_specs(model), config.quantize)
    shards = [shard_of(model, config, rank) for rank in range(size)]
    parts = [PartTensors(config, model, shard) for shard in shards]
    for name, spec in tensor_specs(model).items():
        expected = whole.tensor(name, torch.float32)
        found = [part.tensor(name, torch.float32) for part in parts]
        if name.endswith(("o_proj.bias", "down_proj_bias")) and not (
            by_expert and name.endswith("down_proj_bias")
        ):
            assert torch.equal(sum(found, torch.zeros(())), expected)  # added up over the ranks
            continue
        assert torch.equal(_merged(found, spec.shape), expected), name


@pytest.mark.parametrize(("size", "by_expert"), SPLITS)
def test_a_stored_block_is_read_by_one_rank(size: int, by_expert: bool, tmp_path: Path) -> None:
    config = config_of(tmp_path, size, by_expert)
    model = _shape()
    shards = [shard_of(model, config, rank) for rank in range(size)]
    shapes = {"gate_up_proj": (2 * model.intermediate_size, 1), "down_proj": (32, 5)}
    for kind, shape in shapes.items():
        for stored in ("blocks", "scales"):
            places = torch.zeros((model.num_local_experts, *shape), dtype=torch.int32)
            for shard in shards:
                places[cut(f"{LAYER}mlp.experts.{kind}_{stored}", model, shard)] += 1
            assert bool((places == 1).all())


@pytest.mark.parametrize(
    ("changes", "size", "by_expert", "says"),
    [
        ({}, 3, False, "the model's 4 K/V heads cannot be shared out evenly; use a divisor of it"),
        (
            {"intermediate_size": 64},
            4,
            False,
            "there are 2 blocks of 32 in an expert's columns; use a smaller one, or"
            " expert_parallel 4",
        ),
        ({"num_local_experts": 2}, 4, True, "there are 2 experts; use a smaller one"),
    ],
)
def test_a_split_that_cannot_be_is_refused_with_the_remedy(
    changes: dict[str, int], size: int, by_expert: bool, says: str, tmp_path: Path
) -> None:
    model = _shape(**changes)
    with pytest.raises(EngineStartError) as raised:
        shard_of(model, config_of(tmp_path, size, by_expert), 0)
    assert str(raised.value) == f"tensor_parallel is {size}, and {says}"


def test_a_rank_holds_its_share_of_heads_experts_and_columns(tmp_path: Path) -> None:
    model = _shape()
    columns = part_of(model, shard_of(model, config_of(tmp_path, 4), 0))
    assert (columns.num_attention_heads, columns.num_key_value_heads) == (2, 1)
    assert (columns.intermediate_size, columns.num_local_experts) == (64, 4)
    experts = part_of(model, shard_of(model, config_of(tmp_path, 4, by_expert=True), 3))
    assert (experts.intermediate_size, experts.num_local_experts) == (160, 1)


def _merged(parts: list[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    """Side by side in the dimension in which they are smaller than the whole."""
    narrow = [at for at, num in enumerate(shape) if parts[0].shape[at] != num]
    if not narrow:
        assert all(torch.equal(part, parts[0]) for part in parts)  # every rank has it
        return parts[0]
    [dimension] = narrow
    return torch.cat(parts, dimension)


def _shape(**changes: int) -> ModelConfig:
    """The shape of model_dir's model, with changes."""
    with TemporaryDirectory() as name:
        path = Path(name) / "config.json"
        values = small_config(VOCAB_SIZE) | SHAPE | changes
        path.write_text(json.dumps(values))
        return ModelConfig.from_dir(path.parent)
