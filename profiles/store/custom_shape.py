"""A checkpoint folder of any shape of gpt-oss: which model it is, and which profiles may serve it.

A fine-tune has the shape of a model of the catalogue and its profiles. One with more, fewer or
other layers and experts is a model of its own: its memory is computed from its config.json, and it
is served by the values of the generic profiles (a generation of GPUs or a CPU, not one
board) of the model that is nearest in size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from profiles.catalogue.catalogue import Catalogue
from profiles.catalogue.models import Model, ModelShape, Precision, Profile
from profiles.catalogue.parameters import num_parameters
from profiles.checkpoints.checkpoint import Checkpoint
from profiles.checkpoints.gguf import precision_of
from profiles.errors import ModelStoreError

VOCABULARY: Final = 201_088  # ids that prompts and answers in Harmony may have


class CustomShape(ModelShape):
    """A shape that is in no catalogue."""

    full_attention_layers: Annotated[int, Field(ge=1)]

    @property
    def num_full_layers(self) -> int:
        """Layers that attend to the whole context."""
        return self.full_attention_layers


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model, and the profiles of which one is to serve it."""

    model: Model
    profiles: tuple[Profile, ...]


def find(opened: Checkpoint, known: Catalogue, name: str | None = None) -> ResolvedModel:
    """Say which model a checkpoint is; raises ModelStoreError, with the remedy, if not gpt-oss.

    `name`: what a model of its own shape is called, if not by its folder's name.
    """
    path, config = opened.described_by, opened.config
    profiles = readable(known.profiles, opened)
    model = _known_model(config, known)
    if model is not None and any(profile.model == model for profile in profiles):
        return ResolvedModel(model, tuple(_as_stored(each, model, config) for each in profiles))
    if model is None:
        _check_architecture(path, config)
        shape = _shape(path, config)
        name = _name(name or opened.place.resolve().name.removesuffix(".gguf"))
        model = Model(name=name, description=_describe(shape), shape=shape)
    return ResolvedModel(model, tuple(_adapted(model, profiles, _stored(config, model.shape))))


def readable(profiles: Iterable[Profile], opened: Checkpoint) -> tuple[Profile, ...]:
    """Keep the profiles whose engine can read the folder; raises ModelStoreError."""
    has_gguf = opened.has_gguf
    has_others = not has_gguf or opened.has_safetensors
    return tuple(p for p in profiles if (has_gguf if p.reads_gguf else has_others))


def _known_model(config: Mapping[str, Any], known: Catalogue) -> Model | None:
    for model in known.models.values():
        if all(config.get(key) == value for key, value in model.shape.model_dump().items()):
            return model
    return None


def _check_architecture(path: Path, config: Mapping[str, Any]) -> None:
    if config.get("model_type") != "gpt_oss":
        raise ModelStoreError(
            f"{path}: model_type is {config.get('model_type')!r}; this server runs gpt-oss only "
            f"('gpt_oss'): set NIM_MODEL_PATH to a checkpoint of that architecture, or unset it "
            "to serve a model of the catalogue"
        )
    vocab_size = config.get("vocab_size")
    if isinstance(vocab_size, int) and vocab_size < VOCABULARY:
        raise ModelStoreError(
            f"{path}: vocab_size is {vocab_size:,}; prompts are written in the vocabulary of "
            f"gpt-oss, which has {VOCABULARY:,} tokens: serve a checkpoint that kept them all"
        )


def _shape(path: Path, config: Mapping[str, Any]) -> CustomShape:
    given = {
        key: value for key in ModelShape.model_fields if (value := config.get(key)) is not None
    }
    if "num_experts_per_tok" not in given and "experts_per_token" in config:
        given["num_experts_per_tok"] = config["experts_per_token"]
    hidden, heads, layers = (
        given.get(key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers")
    )
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        given.setdefault("head_dim", hidden // heads)
    num_full = layers // 2 if isinstance(layers, int) else 1  # the first has the window
    if types := config.get("layer_types"):
        num_full = sum(each == "full_attention" for each in types)
    try:
        return CustomShape.model_validate({**given, "full_attention_layers": max(1, num_full)})
    except ValidationError as error:
        problem = error.errors()[0]
        key = problem["loc"][0]
        raise ModelStoreError(
            f"{path}: {key} is {config.get(str(key))!r}; gpt-oss needs a positive number there"
        ) from None


def _adapted(model: Model, profiles: Iterable[Profile], stored: Precision) -> Iterable[Profile]:
    """One generic profile of each name, from the model nearest in size that has it."""
    size = log(num_parameters(model.shape))
    by_nearness = sorted(profiles, key=lambda p: abs(log(num_parameters(p.model.shape)) - size))
    seen = set()
    for profile in by_nearness:
        if profile.name in seen or not _may_serve(profile, model.shape):
            continue
        seen.add(profile.name)
        yield _of(model, profile, stored)


def _may_serve(profile: Profile, shape: ModelShape) -> bool:
    """Return whether a profile may serve another shape than that of its model.

    Boards are named, and memory is asked for, because of the model it was made for.
    """
    if profile.gpu is not None and profile.gpu.names:
        return False
    if profile.draft or profile.gpu_layers is not None:  # made for one model
        return False
    if profile.gpu is not None and profile.model.is_demonstration:  # a GPU is for more than that
        return False
    return shape.num_attention_heads % profile.parallelism.tp == 0


def _of(model: Model, profile: Profile, stored: Precision) -> Profile:
    longest = min(profile.limits.max_model_len, model.shape.max_position_embeddings)
    gpu = profile.gpu.model_copy(update={"min_memory_gb": None}) if profile.gpu else None
    return profile.model_copy(
        update={
            "model": model,
            "gpu": gpu,
            "limits": profile.limits.model_copy(update={"max_model_len": longest}),
            "precision": stored if profile.precision == "mxfp4" else profile.precision,
            "status": profile.status if profile.status in ("compiled", "planned") else "untuned",
            "source": f"the values of {profile.title}, generic and untuned for this checkpoint; "
            f"there: {profile.source}",
        }
    )


def _as_stored(profile: Profile, model: Model, config: Mapping[str, Any]) -> Profile:
    """A GGUF file of a known model may have another precision than its published one."""
    if "gguf_type" not in config or profile.model != model:
        return profile
    return profile.model_copy(update={"precision": _stored(config, model.shape)})


def _stored(config: Mapping[str, Any], shape: ModelShape) -> Precision:
    """The experts' format; engines that do not unpack compute in it."""
    if "gguf_type" in config:
        return precision_of(config["gguf_type"], config["gguf_bytes"], num_parameters(shape))
    quantization = config.get("quantization_config")
    is_mxfp4 = isinstance(quantization, dict) and quantization.get("quant_method") == "mxfp4"
    return "mxfp4" if is_mxfp4 else "bf16"


def _describe(shape: ModelShape) -> str:
    size = num_parameters(shape)
    weights = f"{size / 1e9:.1f} billion" if size >= 1e9 else f"{size / 1e6:.0f} million"
    return (
        f"gpt-oss in a custom shape: {shape.num_hidden_layers} layers of {shape.hidden_size}, "
        f"{shape.num_local_experts} experts, {weights} weights"
    )


def _name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "gpt-oss"
