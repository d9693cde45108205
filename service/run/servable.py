"""What the settings ask to serve: a model of the catalogue, or the checkpoint of NIM_MODEL_PATH."""

from __future__ import annotations

from dataclasses import dataclass

from engines.factory import Engines
from profiles.catalogue.catalogue import Catalogue
from profiles.catalogue.models import Profile
from profiles.errors import InvalidConstraint
from profiles.selection.verdicts import Constraints
from profiles.store import custom_shape
from profiles.store.store import Fetching
from profiles.store.user_checkpoint import UserCheckpoint, open_user
from service.settings.settings import Settings, ngc_access


@dataclass(frozen=True, slots=True)
class Servable:
    """The profiles of which one is to serve, and what selects among them."""

    model: str | None  # None: any of the catalogue
    profiles: tuple[Profile, ...]
    own: UserCheckpoint | None = None  # what NIM_MODEL_PATH names
    quantize: str | None = None  # to what its experts are rounded; None: as they are


def servable(settings: Settings, known: Catalogue) -> Servable:
    """Read what NIM_MODEL_PATH names, if it is set; raises ProfileError with the remedy."""
    own = user_checkpoint(settings)
    if own is None:
        if settings.quantize is not None:
            raise InvalidConstraint(
                "NIM_QUANTIZE is set without NIM_MODEL_PATH: the catalogue's models are served as "
                "they are published, gpt-oss in MXFP4; unset it, or name your checkpoint"
            )
        return Servable(settings.model_name, known.profiles)
    opened = own.opened()
    found = custom_shape.find(opened, known, own.name, settings.model_name)
    model = settings.model_name or found.model.name
    if settings.quantize is None:
        return Servable(model, found.profiles, own)
    rounding = [each for each in found.profiles if each.is_rounded and model in each.model.names]
    if not rounding and opened.has_gguf and not opened.has_safetensors:
        raise InvalidConstraint(
            f"NIM_QUANTIZE is set, and {own.place} is a GGUF model, which llama.cpp takes as it is:"
            " unset it, or name a checkpoint in the hub's format"
        )
    # Experts that are stored in MXFP4 need no rounding.
    return Servable(model, found.profiles, own, settings.quantize if rounding else None)


def constraints_of(settings: Settings, engines: Engines, asked: Servable) -> Constraints:
    """What a server with these settings asks of a profile."""
    return Constraints(
        model=asked.model,
        goal=settings.profile_goal,
        profile=settings.model_profile,
        tags=settings.tags,
        max_model_len=settings.max_model_len,
        num_replicas=settings.replicas,
        memory_fraction=settings.kvcache_percent,
        quantize=asked.quantize,
        installed=engines.installed,
        cpu_only=engines.cpu_only,
    )


def user_checkpoint(settings: Settings) -> UserCheckpoint | None:
    if settings.model_path is None:
        return None
    return open_user(settings.model_path, settings.cache_path, fetching_of(settings))


def fetching_of(settings: Settings) -> Fetching:
    """Read from the settings whether files may be fetched, and how."""
    is_allowed = not settings.disable_model_download
    return Fetching(is_allowed, settings.repository_override, ngc_access())
