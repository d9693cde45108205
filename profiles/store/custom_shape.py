"""A checkpoint folder of any shape of gpt-oss: which model it is, and which profiles may serve it.

A fine-tune has the shape of a model of the catalogue and its profiles. One with more, fewer or
other layers and experts is a model of its own: its memory is computed from its config.json, and it
is served by the values of the generic profiles (a generation of GPUs or a CPU, not one
board) of the model that is nearest in size. Of both, the headers of the shards say in which
precision the weights are (profiles/checkpoints/stored.py).
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
from profiles.checkpoints.file_names import shown
from profiles.checkpoints.gguf import precision_of
from profiles.checkpoints.stored import check_agreement, check_format, is_tied
from profiles.errors import ModelStoreError
from profiles.store.as_stored import as_stored, rounded

VOCABULARY: Final = 201_088  # ids that prompts and answers in Harmony may have


class CustomShape(ModelShape):
    """A shape that is in no catalogue."""

    full_attention_layers: Annotated[int, Field(ge=1)]
    tie_word_embeddings: bool = False

    @property
    def num_vocabulary_matrices(self) -> int:
        """One where the embedding's rows score the tokens too."""
        return 1 if self.tie_word_embeddings else 2

    @property
    def num_full_layers(self) -> int:
        return self.full_attention_layers


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model, and the profiles of which one is to serve it."""

    model: Model
    profiles: tuple[Profile, ...]


def find(
    opened: Checkpoint, known: Catalogue, name: str | None = None, wanted: str | None = None
) -> ResolvedModel:
    """Say which model a checkpoint is; raises ModelStoreError, with the remedy, if not gpt-oss.

    `name`: what a model of its own shape is called, if not by its folder's name. `wanted`: the
    model that it is said to be.
    """
    path, config = opened.described_by, opened.config
    profiles = readable(known.profiles, opened)
    model = _wanted(wanted, known)
    if model is None:
        model = _known_model(config, known)
    else:
        _check_layers(path, config, model)
    if model is None:
        _check_architecture(path, config)
    stored = _stored(opened)
    if model is not None and any(profile.model == model for profile in profiles):
        return _as_known(model, profiles, stored)
    if model is None:
        shape = _shape(path, config)
        name = _name(name or opened.place.resolve().name.removesuffix(".gguf"))
        model = Model(name=name, description=_describe(shape), shape=shape)
    adapted = tuple(_adapted(model, profiles))
    return ResolvedModel(model, _both(adapted, stored))


def _wanted(name: str | None, known: Catalogue) -> Model | None:
    """The catalogue's model of this name; whether the checkpoint is one, the store checks."""
    return next((model for model in known.models.values() if name in model.names), None)


def _as_known(model: Model, profiles: tuple[Profile, ...], stored: Precision) -> ResolvedModel:
    """A fine-tune: the model's profiles for what the files hold."""
    if stored == "mxfp4":
        return ResolvedModel(model, profiles)
    own = tuple(each for each in profiles if each.model == model)
    others = tuple(each for each in profiles if each.model != model)
    if model.is_demonstration:  # it is shipped so
        return ResolvedModel(model, (*others, *_both(own, stored)))
    described = model.model_copy(update={"description": _describe(model.shape, model, stored)})
    own = tuple(each.model_copy(update={"model": described}) for each in own)
    # Three times the bytes may need more GPUs than the model's own profiles have.
    names = {each.name for each in own}
    split = (
        each
        for each in _adapted(described, profiles)
        if each.parallelism.pp > 1 and each.name not in names
    )
    return ResolvedModel(described, (*others, *_both((*own, *split), stored)))


def _both(profiles: Iterable[Profile], stored: Precision) -> tuple[Profile, ...]:
    """Each profile for the weights as they are; of weights in more bits, for rounded ones too."""
    profiles = tuple(profiles)
    kept = tuple(as_stored(each, stored) for each in profiles)
    return kept if stored == "mxfp4" else (*kept, *rounded(profiles))


def readable(profiles: Iterable[Profile], opened: Checkpoint) -> tuple[Profile, ...]:
    """Keep the profiles whose engine can read the folder; raises ModelStoreError."""
    has_gguf = opened.has_gguf
    has_others = not has_gguf or opened.has_safetensors
    return tuple(p for p in profiles if (has_gguf if p.reads_gguf else has_others))


def _known_model(config: Mapping[str, Any], known: Catalogue) -> Model | None:
    if is_tied(config):
        return None
    for model in known.models.values():
        shape = model.shape
        if all(config.get(key) == value for key, value in shape.model_dump().items()):
            return model if _num_full(config, shape) == shape.num_full_layers else None
    return None


def _check_layers(path: Path, config: Mapping[str, Any], model: Model) -> None:
    """Raise ModelStoreError where the layers are others than the model's that it is said to be;
    the store compares the sizes."""
    num_full, expected = _num_full(config, model.shape), model.shape.num_full_layers
    if is_tied(config) or num_full != expected:
        raise ModelStoreError(
            f"{path} is not {model.name}'s: {num_full} layers attend to the whole context, "
            f"{expected} expected; tie_word_embeddings is {str(is_tied(config)).lower()}, false "
            "expected; unset NIM_MODEL_NAME to serve what the folder holds"
        )


def _num_full(config: Mapping[str, Any], shape: ModelShape) -> int:
    """Layers that attend to the whole context; without layer_types, the first has the window."""
    types = config.get("layer_types")
    if isinstance(types, list) and types:
        return sum(each == "full_attention" for each in types)
    return shape.num_hidden_layers // 2


def _check_architecture(path: Path, config: Mapping[str, Any]) -> None:
    if config.get("model_type") != "gpt_oss":
        raise ModelStoreError(
            f"{path}: model_type is {shown(config.get('model_type'))}; this server runs gpt-oss "
            "only ('gpt_oss'): set NIM_MODEL_PATH to a checkpoint of that architecture, or unset "
            "it to serve a model of the catalogue"
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
    hidden, heads = (given.get(key) for key in ("hidden_size", "num_attention_heads"))
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        given.setdefault("head_dim", hidden // heads)
    try:
        num_full = _num_full(config, ModelShape.model_validate(given))
        own = {"full_attention_layers": max(1, num_full), "tie_word_embeddings": is_tied(config)}
        return CustomShape.model_validate({**given, **own})
    except ValidationError as error:
        problem = error.errors()[0]
        key = problem["loc"][0]
        raise ModelStoreError(
            f"{path}: {key} is {shown(config.get(str(key)))}; gpt-oss needs a positive number there"
        ) from None


def _adapted(model: Model, profiles: Iterable[Profile]) -> Iterable[Profile]:
    """One generic profile of each name, from the model nearest in size that has it."""
    size = log(num_parameters(model.shape))
    by_nearness = sorted(profiles, key=lambda p: abs(log(num_parameters(p.model.shape)) - size))
    seen = set()
    for profile in by_nearness:
        if profile.name in seen or not _may_serve(profile, model.shape):
            continue
        seen.add(profile.name)
        yield _of(model, profile)


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


def _of(model: Model, profile: Profile) -> Profile:
    longest = min(profile.limits.max_model_len, model.shape.max_position_embeddings)
    gpu = profile.gpu.model_copy(update={"min_memory_gb": None}) if profile.gpu else None
    return profile.model_copy(
        update={
            "model": model,
            "gpu": gpu,
            "limits": profile.limits.model_copy(update={"max_model_len": longest}),
            "status": profile.status if profile.status in ("compiled", "planned") else "untuned",
            "source": f"the values of {profile.title}, generic and untuned for this checkpoint; "
            f"there: {profile.source}",
        }
    )


def _stored(opened: Checkpoint) -> Precision:
    """The experts' format, by the files; engines that do not unpack compute in it.

    Raises ModelStoreError for formats that nothing here reads, and for files that config.json does
    not describe.
    """
    place, config = str(opened.described_by), opened.config
    if "gguf_type" in config:
        weights = num_parameters(_shape(opened.described_by, config))
        return precision_of(config["gguf_type"], config["gguf_bytes"], weights)
    stored = opened.stored()
    check_format(place, config, stored)
    if stored is not None and stored.experts:
        check_agreement(place, config, stored)
        return stored.precision
    quantization = config.get("quantization_config")
    is_mxfp4 = isinstance(quantization, dict) and quantization.get("quant_method") == "mxfp4"
    return "mxfp4" if is_mxfp4 else "bf16"


def _describe(shape: ModelShape, model: Model | None = None, stored: Precision = "mxfp4") -> str:
    size = num_parameters(shape)
    weights = f"{size / 1e9:.1f} billion" if size >= 1e9 else f"{size / 1e6:.0f} million"
    if model is not None:
        return f"gpt-oss in the shape of {model.name}: {weights} weights; experts in {stored}"
    return (
        f"gpt-oss in a custom shape: {shape.num_hidden_layers} layers of {shape.hidden_size}, "
        f"{shape.num_local_experts} experts, {weights} weights"
    )


def _name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "gpt-oss"
