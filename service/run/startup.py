"""The start-up flow as far as the engine: settings → hardware → profile → files → engine spec."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.factory import cpu_only_engines, installed_engines
from engines.spec import EngineSpec
from profiles import catalogue, own_shape, selector, store
from profiles.download.source import Wanted
from profiles.hardware import detect
from profiles.machine import GB, Hardware
from profiles.models import Profile
from profiles.notes import where
from profiles.own_checkpoint import OwnCheckpoint, open_own
from profiles.placement import Placement
from profiles.store import Fetching
from profiles.verdicts import Constraints, Selection
from service.harmony.vocabulary import write_vocabulary
from service.run.idle_gpus import idle_gpus
from service.settings.settings import Settings, ngc_access, unknown_names

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launch:
    """What was decided to run, before anything runs."""

    hardware: Hardware
    selection: Selection
    model_dir: Path
    spec: EngineSpec
    served_name: str
    devices: tuple[Mapping[str, str], ...] = ({},)  # of each replica: what its environment adds
    to_fetch: tuple[Wanted, ...] = ()  # what `obtain` has to bring first
    own: OwnCheckpoint | None = None  # what NIM_MODEL_PATH names


def prepare(settings: Settings) -> Launch:
    """Decide what to run on this machine; raises ProfileError with the reasons and the remedy."""
    known = catalogue.load()
    hardware = detect()
    model, profiles = settings.model_name, known.profiles
    own = own_checkpoint(settings)
    if model is None and own is not None:
        found = own_shape.find(own.folder, known, own.name)
        model, profiles = found.model.name, found.profiles
    constraints = Constraints(
        model=model,
        goal=settings.profile_goal,
        profile=settings.model_profile,
        tags=settings.tags,
        max_model_len=settings.max_model_len,
        num_replicas=settings.replicas,
        installed=installed_engines(),
        cpu_only=cpu_only_engines(),
    )
    selection = selector.select(profiles, hardware, constraints)
    chosen = selection.chosen
    folder = None if own is None else own.folder
    to_fetch = _to_fetch(settings, chosen.profile) if own is None else own.to_fetch
    if to_fetch:
        model_dir = folder or store.folder_of(chosen.profile.model, settings.cache_path)
    else:
        model_dir = store.resolve(chosen.profile, settings.cache_path, folder)
    vocabulary = _vocabulary(settings) if chosen.profile.engine == "native" else None
    return Launch(
        hardware=hardware,
        selection=selection,
        model_dir=model_dir,
        spec=spec_of(
            chosen.profile,
            chosen.max_model_len,
            model_dir,
            vocabulary,
            settings.cache_path / "engines",
        ),
        served_name=settings.served_model_name or chosen.profile.model.name,
        devices=devices_of(chosen.placement, hardware),
        to_fetch=to_fetch,
        own=own,
    )


def obtain(settings: Settings, launch: Launch) -> None:
    """Fetch and check files that the model store lacks; raises ModelStoreError with the remedy."""
    if not launch.to_fetch:
        return
    profile, fetching = launch.selection.chosen.profile, fetching_of(settings)
    if launch.own is not None:
        launch.own.obtain(fetching)
        store.resolve(profile, settings.cache_path, launch.own.folder)
    else:
        store.resolve(profile, settings.cache_path, fetching=fetching)


def own_checkpoint(settings: Settings) -> OwnCheckpoint | None:
    """What NIM_MODEL_PATH names; from a URI, its list of files and config.json are fetched."""
    if settings.model_path is None:
        return None
    return open_own(settings.model_path, settings.cache_path, fetching_of(settings))


def fetching_of(settings: Settings) -> Fetching:
    """Whether files may be fetched, and how."""
    is_allowed = not settings.disable_model_download
    return Fetching(is_allowed, settings.repository_override, ngc_access())


def _to_fetch(settings: Settings, profile: Profile) -> tuple[Wanted, ...]:
    if settings.disable_model_download:
        return ()
    return tuple(store.to_fetch(profile.model, settings.cache_path))


def spec_of(
    profile: Profile,
    max_model_len: int,
    model_dir: Path,
    vocabulary: Path | None = None,
    artefact_dir: Path | None = None,
) -> EngineSpec:
    """The engine's spec of a profile, with its limits on this machine."""
    parallelism = profile.parallelism
    has_artefact = profile.engine == "native" and profile.gpu is not None
    return EngineSpec(
        profile.engine,
        options=profile.options,
        limits={**profile.limits.model_dump(), "max_model_len": max_model_len},
        model_dir=str(model_dir),
        vocabulary_path=None if vocabulary is None else str(vocabulary),
        artefact_dir=str(artefact_dir) if artefact_dir and has_artefact else None,
        precision=profile.precision,
        kv_dtype=profile.kv_dtype,
        memory_fraction=profile.memory_fraction,
        num_devices=profile.num_devices if profile.gpu is not None else 0,
        tensor_parallel=parallelism.tp,
        pipeline_parallel=parallelism.pp,
        expert_parallel=parallelism.ep,
        attention_dp=parallelism.attention_dp,
        environment=profile.environment,
    )


def devices_of(placement: Placement, hardware: Hardware) -> tuple[Mapping[str, str], ...]:
    """Each replica sees the GPUs it was placed on; nothing is hidden that nobody else could use."""
    if len(placement.gpus) == len(hardware.gpus) and placement.num_replicas == 1:
        return ({},)
    return tuple(
        {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid or str(gpu.index) for gpu in group)}
        if group
        else {}
        for group in placement.by_replica
    )


def _vocabulary(settings: Settings) -> Path | None:
    """The native engine knows no text: grammars need the vocabulary as a file."""
    folder = settings.cache_path / "vocabulary"
    try:
        return write_vocabulary(folder)
    except OSError as error:
        log.warning(
            "%s cannot be written (%s): requests that need guided decoding will be refused; "
            "point NIM_CACHE_PATH to a folder that can be written",
            folder,
            error.strerror,
        )
        return None


def warn_of_unknown_names() -> None:
    """Warn of unread NIM_* variables: a typing error must not pass silently."""
    for name, nearest in unknown_names():
        hint = f"; did you mean {nearest}?" if nearest else "; docs/settings.md lists the settings"
        log.warning("%s is not a setting of this server and has no effect%s", name, hint)


def tell(launch: Launch) -> None:
    """Log what was found and chosen, and why, for a person to read."""
    hardware, chosen = launch.hardware, launch.selection.chosen
    cpu = hardware.cpu
    memory = f"{cpu.num_cores} cores ({cpu.model}), {cpu.total_bytes / GB:.0f} GB memory"
    log.info("Hardware: %s; %s", memory, _gpus(hardware))
    for warning in hardware.warnings:
        log.warning("%s", warning)
    profile = chosen.profile
    log.info("Profile: %s, id %s", profile.name, profile.id)
    log.info("Runs %s", where(chosen.placement))
    log.info("Why: %s `harmonium profiles` tells more.", launch.selection.reason)
    if isinstance(profile.model.shape, own_shape.OwnShape):
        log.info("Checkpoint: %s. Served by %s", profile.model.description, profile.source)
    idle = idle_gpus(launch.selection, hardware)
    level = logging.WARNING if hardware.gpus else logging.INFO
    for note in (idle,) if idle else launch.selection.notes:
        log.log(level, "%s", note)
    if launch.to_fetch:
        log.info(
            "The cache lacks %d files (%.1f GB) of %s: a start fetches them into %s, unless "
            "NIM_DISABLE_MODEL_DOWNLOAD=1 forbids it",
            len(launch.to_fetch),
            sum(file.size_bytes for file in launch.to_fetch) / GB,
            profile.model.name,
            launch.model_dir,
        )
    log.info(
        "Model: %s in %s, a context of %d tokens; starting the %s engine ...",
        profile.model.name,
        launch.model_dir,
        chosen.max_model_len,
        profile.engine,
    )


def _gpus(hardware: Hardware) -> str:
    if not hardware.gpus:
        return f"no GPU: {hardware.no_gpu_reason}"
    return f"{hardware.summary}, driver {hardware.driver}"
