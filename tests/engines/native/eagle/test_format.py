"""Heads in the published format; what is not one, or not for this model, is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.errors import EngineStartError
from engines.native.config import ModelConfig, NativeConfig
from engines.native.eagle.checkpoint import EagleWeights, load_eagle
from engines.native.eagle.config import EagleConfig
from tests.engines.native.eagle.conftest import TARGET
from tests.engines.native.eagle.reference import Tensors, head_config, head_tensors, write_head


def read(folders: Any, **changes: Any) -> EagleConfig:
    target = ModelConfig.from_dir(folders.model)
    return EagleConfig.from_dir(folders.head("some", **changes), target)


def load(folders: Any, change: Callable[[Tensors], object]) -> EagleWeights:
    config = head_config(TARGET)
    tensors = head_tensors(config)
    change(tensors)
    folder = write_head(folders.heads / "changed", config, tensors)
    return load_eagle(
        folder,
        EagleConfig.from_dir(folder, ModelConfig.from_dir(folders.model)),
        torch.float32,
        torch.device("cpu"),
        target_embedding=folders.embedding,
        target_head=lambda: torch.zeros(60, 32),
    )


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, (0, 1, 3)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}, (1, 2)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}}, (0, 1, 3)),
        ({"eagle_config": {}, "eagle_aux_hidden_state_layer_ids": [1, 2, 4]}, (0, 1, 3)),
    ],
)
def test_layers_are_counted_as_whoever_wrote_them_does(
    folders: Any, changes: dict[str, Any], layers: tuple[int, ...]
) -> None:
    assert read(folders, **changes).layers == layers


def test_a_head_that_names_no_layers_takes_three_of_a_deep_model(folders: Any) -> None:
    folder = folders.head("deep", eagle_config=None)
    target = ModelConfig.from_dir(folders.model)
    with pytest.raises(EngineStartError, match="layer_ids is missing, and the model has only 4"):
        EagleConfig.from_dir(folder, target)
    object.__setattr__(target, "num_hidden_layers", 24)
    assert EagleConfig.from_dir(folder, target).layers == (1, 11, 20)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "an EAGLE3 head has 'LlamaForCausalLMEagle3'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; this engine runs heads with 'silu'"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2; this engine runs heads with 1"),
        (
            {"eagle_config": {"use_aux_hidden_state": False}},
            "eagle_config.use_aux_hidden_state is False",
        ),
        ({"target_hidden_size": 64}, "target_hidden_size is 64, and the model's is 32"),
        ({"vocab_size": 90}, "vocab_size is 90, and the model's is 60"),
        ({"draft_vocab_size": 61}, "draft_vocab_size is 61, above vocab_size 60"),
        ({"num_key_value_heads": 3}, "num_attention_heads is not a multiple"),
        ({"head_dim": 7}, "head_dim is 7; rotary embedding needs an even number"),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 5]}},
            r"layer_ids is \[0, 5\]; expected rising numbers of the model's 4 layers",
        ),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["a"]}},
            r"layer_ids is \['a'\]; expected a list of integers",
        ),
        ({"rope_scaling": {"rope_type": "ntk"}}, "rope type is 'ntk'; use one of"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor is missing"),
    ],
)
def test_what_is_not_computed_is_refused_by_its_key(
    folders: Any, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(EngineStartError, match=reason) as error:
        read(folders, **changes)
    assert "config.json: " in str(error.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.pop("fc.weight"), "tensor fc.weight is missing"),
        (
            lambda t: t.update({"fc.weight": torch.zeros(32, 32)}),
            r"fc.weight has shape \[32, 32\]; config.json asks for \[32, 96\]",
        ),
        (lambda t: t.update({"extra": torch.zeros(1)}), "tensor extra is not part of this model"),
        (lambda t: t.pop("d2t"), "tensor d2t is missing, and draft_vocab_size is 30 of 60"),
        (lambda t: t["d2t"].add_(40), "d2t leads to token 98 of 60"),
        (lambda t: t.pop("lm_head.weight"), "tensor lm_head.weight is missing"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    folders: Any, change: Callable[[Tensors], object], reason: str
) -> None:
    with pytest.raises(EngineStartError, match=reason):
        load(folders, change)


def test_an_embedding_of_its_own_is_the_heads(folders: Any) -> None:
    own = torch.ones(60, 32)
    weights = load(folders, lambda t: t.update({"embed_tokens.weight": own}))
    assert torch.equal(weights.embedding, own)
    assert torch.equal(load(folders, lambda t: None).embedding, folders.embedding)


def test_the_names_that_speculators_give_are_read_too(folders: Any) -> None:
    def rename(tensors: Tensors) -> None:
        for name in [*tensors]:
            tensors[name.replace("midlayer.", "layers.0.")] = tensors.pop(name)

    plain = load(folders, lambda t: None)
    assert torch.equal(load(folders, rename).qkv, plain.qkv)


@pytest.mark.parametrize(
    "options", [{"speculation": "eagle3"}, {"draft_dir": Path("head"), "speculation": "ngram"}]
)
def test_the_option_and_the_folder_belong_together(options: dict[str, Any]) -> None:
    with pytest.raises(EngineStartError, match="set draft_dir to the head's folder with 'eagle3'"):
        NativeConfig(Path("model"), **options)
