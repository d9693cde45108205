"""`harmonium serve` as the front of a Dynamo deployment: nothing of this machine is chosen.

The workers chose profiles on theirs. Of the model only the name is needed here: prompts and answers
travel as token ids, and the vocabulary is the same for every gpt-oss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engines.spec import EngineSpec
from parts.dynamo.settings import DynamoSettings
from profiles.catalogue.catalogue import Catalogue
from profiles.catalogue.models import Profile
from profiles.errors import InvalidConstraint, nearest
from profiles.selection.memory import memory_need
from profiles.selection.placement import Placement
from profiles.selection.verdicts import Candidate, Selection
from service.settings.settings import Settings, env_name, fields_of_engine

ENGINE: Final = "dynamo"
# What decides about an engine is decided where it runs.
_OF_WORKERS: Final = (
    "model_path",
    "model_profile",
    "profile_goal",
    "tags_selector",
    "replicas",
    "kvcache_percent",
    "kv_cache_dtype",
    "quantize",
    "max_token_gap_ms",
    "batch_invariant",
    "engine_fallback",
    "dynamo_role",
)


def select_front(
    settings: Settings, known: Catalogue, installed: Mapping[str, str | None]
) -> Selection:
    """The selection of a front; raises InvalidConstraint where the settings are not a front's."""
    own, variable = settings.of(DynamoSettings), env_name("dynamo_endpoint")
    if reason := installed[ENGINE]:
        raise InvalidConstraint(f"{variable} is set, and the engine {ENGINE} is {reason}")
    for field in (*_OF_WORKERS, *fields_of_engine()):
        if getattr(settings, field) != Settings.model_fields[field].default:
            raise InvalidConstraint(
                f"{variable} and {env_name(field)} are set: a front runs no engine; set "
                f"{env_name(field)} for the workers (harmonium dynamo-worker)"
            )
    profile = _profile(settings, known)
    placement = Placement((), memory_need(profile), 0, profile.limits)
    candidate = Candidate(profile, placement, profile.limits.max_model_len)
    because = f"{variable} is set: the workers of {own.dynamo_endpoint} compute."
    return Selection((candidate,), (), because)


def front_spec(settings: Settings) -> EngineSpec:
    own = settings.of(DynamoSettings)
    options: dict[str, Any] = {"endpoint": own.dynamo_endpoint, "discovery": own.dynamo_discovery}
    if settings.max_queue_length is not None:
        options["max_num_waiting"] = settings.max_queue_length
    limits = {} if settings.max_model_len is None else {"max_model_len": settings.max_model_len}
    return EngineSpec(ENGINE, options, limits)


def _profile(settings: Settings, known: Catalogue) -> Profile:
    """Describe what is served; precision and limits are the workers', and these usual."""
    name = settings.model_name
    if name is None:
        raise InvalidConstraint(
            f"{env_name('dynamo_endpoint')} is set: set {env_name('model_name')} as well, to the "
            "model of the workers"
        )
    names = {each: model for model in known.models.values() for each in model.names}
    if name not in names:
        hint = nearest(name, names)
        raise InvalidConstraint(f"{env_name('model_name')} {name!r} is unknown{hint}")
    usual = next(p for p in known.profiles if p.model.name == names[name].name)
    longest = names[name].shape.max_position_embeddings
    limits = usual.limits.model_copy(update={"max_model_len": settings.max_model_len or longest})
    return Profile(
        model=names[name],
        engine=ENGINE,
        goal="balanced",
        precision=usual.precision,
        limits=limits,
        kv_dtype=usual.kv_dtype,
        status="untuned",
        source="The workers of the deployment have profiles of their own.",
    )
