"""Folders of any shape of gpt-oss: recognised, measured, and given a generic profile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profiles.catalogue.catalogue import Catalogue
from profiles.catalogue.models import Profile
from profiles.checkpoints.checkpoint import Checkpoint
from profiles.errors import ModelStoreError, NoCompatibleProfile
from profiles.hardware.written import parse_hardware
from profiles.selection.memory import memory_need
from profiles.selection.selector import select
from profiles.selection.verdicts import Constraints
from profiles.store.custom_shape import ResolvedModel, find

# gpt-oss-20b with 20 of 24 layers and 24 of 32 experts kept.
PRUNED: dict[str, Any] = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 20,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_local_experts": 24,
    "experts_per_token": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201_088,
    "sliding_window": 128,
    "max_position_embeddings": 65_536,
    "quantization_config": {"quant_method": "mxfp4"},
}

Look = Callable[..., ResolvedModel]


@pytest.fixture
def look(tmp_path: Path, catalogue: Catalogue) -> Look:
    """look(**changes): what a folder with this config.json is."""

    def look(**changes: Any) -> ResolvedModel:
        folder = tmp_path / "my pruned-oss"
        folder.mkdir(exist_ok=True)
        config = {key: value for key, value in (PRUNED | changes).items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))
        return find(Checkpoint.open(folder), catalogue)

    return look


def named(found: ResolvedModel, name: str) -> Profile:
    return next(profile for profile in found.profiles if profile.name == name)


def test_a_fine_tune_is_the_model_whose_shape_it_has(look: Look, catalogue: Catalogue) -> None:
    shape = catalogue.models["gpt-oss-20b"].shape.model_dump()
    found = look(**shape)
    readable = tuple(p for p in catalogue.profiles if p.engine != "llama_cpp")  # no GGUF is there
    assert found == ResolvedModel(catalogue.models["gpt-oss-20b"], readable)


def test_another_shape_is_a_model_of_its_own_with_the_nearest_generic_profiles(look: Look) -> None:
    found = look()
    assert found.model.name == "my-pruned-oss"
    assert "20 layers of 2880, 24 experts" in found.model.description
    assert {p.gpu_label for p in found.profiles} == {
        *("gpu", "hopper", "blackwell", "blackwell-rtx", "ada", "ampere", "cpu")
    }
    assert not any("/native-hopper-bf16" in p.source for p in found.profiles)  # nano's own
    assert len({p.id for p in found.profiles}) == len(found.profiles)
    chosen = named(found, "vllm-gpu-mxfp4-tp1-pp1-balanced")
    assert chosen.status == "untuned"
    assert chosen.source.startswith("the values of gpt-oss-20b/vllm-gpu-mxfp4-tp1-pp1-balanced")
    assert chosen.limits.max_model_len == 65_536  # as far as its positions go
    # Three times as many layers and experts are nearer to the larger model.
    grown = named(look(num_hidden_layers=40, num_local_experts=112), chosen.name)
    assert grown.source.startswith("the values of gpt-oss-120b/")


def test_memory_is_that_of_its_own_shape(look: Look) -> None:
    name = "native-hopper-mxfp4-tp1-pp1-balanced"
    pruned, halved = named(look(), name), named(look(num_local_experts=12), name)
    # An expert: packed weights and biases, and its row of the router.
    experts = 20 * 12 * (3 * 2880 * 2880 * 4.25 / 8 + 3 * 2880 * 2 + 2881 * 2)
    saved = memory_need(pruned).weights_bytes - memory_need(halved).weights_bytes
    assert saved == pytest.approx(experts, abs=2)
    # Which layers attend to everything is its own, too.
    types = ["full_attention"] * 15 + ["sliding_attention"] * 5
    more_full = named(look(layer_types=types), name)
    ratio = memory_need(more_full).kv_bytes_per_token / memory_need(pruned).kv_bytes_per_token
    assert ratio == 15 / 10
    # Without packed experts the weights are as long as they are stored.
    plain = named(look(quantization_config=None), "native-hopper-bf16-tp1-pp1-balanced")
    assert memory_need(plain).weights_bytes > 2 * memory_need(pruned).weights_bytes


def test_profiles_that_cannot_split_or_compute_it_are_left_out(look: Look) -> None:
    assert "vllm-gpu-mxfp4-tp8-pp1-balanced" in {p.name for p in look().profiles}
    odd = look(num_attention_heads=62, num_key_value_heads=2)
    assert {p.parallelism.tp for p in odd.profiles} == {1, 2}
    assert not any(p.draft for p in look().profiles)
    # Experts as plain numbers: llama.cpp's files are made of packed ones.
    plain = look(quantization_config=None)
    kept = [p for p in plain.profiles if not p.is_rounded]
    assert {p.precision for p in kept if p.gpu} == {"bf16"}
    assert {p.engine for p in plain.profiles} == {"native", "vllm", "tensorrt_llm"}


def test_a_checkpoint_without_packed_experts_is_served_on_a_gpu(look: Look) -> None:
    found = look(quantization_config=None, num_hidden_layers=8, num_local_experts=8)
    wish = Constraints(model=found.model.name, installed={"native": None})
    chosen = select(found.profiles, parse_hardware("h100"), wish).chosen.profile
    assert (chosen.engine, chosen.gpu_label, chosen.precision) == ("native", "hopper", "bf16")


def test_a_board_is_asked_for_no_more_memory_than_its_own_shape_needs(look: Look) -> None:
    halved = look(num_hidden_layers=36, num_local_experts=40)  # nearest to gpt-oss-120b
    wish = Constraints(model=halved.model.name, installed={"vllm": None})
    assert select(halved.profiles, parse_hardware("rtx-a6000"), wish).chosen.profile.gpu


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'.*unset it to serve a model of the cat"),
        ({"model_type": None}, "model_type is None"),
        ({"vocab_size": 32_000}, r"vocab_size is 32,000; .* 201,088 tokens: serve a checkpoint"),
        ({"hidden_size": None}, "hidden_size is None; gpt-oss needs a positive number"),
        ({"num_local_experts": "many"}, "num_local_experts is 'many'"),
        ({"num_attention_heads": 0, "head_dim": None}, "num_attention_heads is 0"),
    ],
)
def test_what_is_not_gpt_oss_is_refused_with_a_remedy(
    look: Look, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ModelStoreError, match=rf"config\.json: {complaint}"):
        look(**changes)


def test_what_does_not_fit_is_refused_with_its_own_figures(look: Look) -> None:
    found = look(num_hidden_layers=300)
    with pytest.raises(NoCompatibleProfile) as caught:
        select(found.profiles, parse_hardware("h100:ram=64gb"), Constraints(model=found.model.name))
    reasons = caught.value.reasons
    title = "my-pruned-oss/native-hopper-mxfp4-tp1-pp1-balanced"
    assert "GB weights" in reasons[title]


def test_a_path_that_is_no_folder_names_the_setting(tmp_path: Path, catalogue: Catalogue) -> None:
    with pytest.raises(ModelStoreError, match=r"NIM_MODEL_PATH is .*nowhere, which is not there"):
        find(Checkpoint.open(tmp_path / "nowhere"), catalogue)
