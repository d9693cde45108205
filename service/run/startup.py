"""The start-up flow as far as the engine: settings → hardware → profile → files → engine spec."""

from __future__ import annotations

import contextlib
import logging
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from engines.factory import about
from engines.spec import EngineSpec
from profiles.catalogue import catalogue
from profiles.catalogue.models import Limits, Profile
from profiles.download.progress import amount, num_files
from profiles.download.source import FileToFetch
from profiles.errors import InvalidConstraint
from profiles.hardware.machine import GB, Hardware
from profiles.selection import selector
from profiles.selection.notes import where
from profiles.selection.placement import Placement
from profiles.selection.verdicts import Fit, Rejection, Selection
from profiles.store import drafts, store
from profiles.store.user_checkpoint import UserCheckpoint
from service.chat_format import ChatFormat, format_named
from service.run.download_place import check_place
from service.run.idle_gpus import idle_gpus
from service.run.launching import launch_parts
from service.run.machine import visible_hardware
from service.run.pythons import engines_here
from service.run.scratch import check_readable, writable
from service.run.servable import constraints_of, fetching_of, servable
from service.settings.answers import answer
from service.settings.settings import Settings, engine_environment, unknown_names

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launch:
    """What was decided to run, before anything runs."""

    hardware: Hardware
    selection: Selection
    model_dir: Path
    spec: EngineSpec
    served_name: str  # the first of its names
    more_names: tuple[str, ...] = ()  # that the operator gave
    aliases: tuple[str, ...] = ()  # other names of the catalogue's, where the operator gave none
    devices: tuple[Mapping[str, str], ...] = ({},)  # of each replica: what its environment adds
    to_fetch: tuple[FileToFetch, ...] = ()  # what `obtain` has to bring first
    own: UserCheckpoint | None = None  # what NIM_MODEL_PATH names
    draft: UserCheckpoint | None = None  # the head that the engine drafts with
    is_elsewhere: bool = False  # other machines compute

    @property
    def format(self) -> ChatFormat:
        return format_named(self.selection.chosen.profile.model.format)


def prepare(settings: Settings) -> Launch:
    """Decide what to run on this machine; raises ProfileError with the reasons and the remedy."""
    check_readable(settings.cache_path)
    known = catalogue.load()
    hardware = visible_hardware()
    for part in launch_parts():
        if (found := part.elsewhere(settings, known)) is not None:
            return _elsewhere(settings, hardware, *found)
    asked = servable(settings, known)
    if settings.quantize is not None and asked.quantize is None:
        log.info("NIM_QUANTIZE has no effect: the checkpoint's experts are in MXFP4 already")
    constraints = constraints_of(settings, engines_here(settings), asked)
    selection = selector.select(asked.profiles, hardware, constraints)
    return _launch(settings, hardware, asked.own, selection)


def _elsewhere(
    settings: Settings, hardware: Hardware, selection: Selection, spec: EngineSpec
) -> Launch:
    model_dir = settings.cache_path
    names = _names(settings, selection)
    return Launch(hardware, selection, model_dir, spec, *names, is_elsewhere=True)


def _names(
    settings: Settings, selection: Selection
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    given, own = settings.served_names, selection.chosen.profile.model.names
    return (given or own)[0], given[1:], () if given else own[1:]


def fallback(settings: Settings, launch: Launch, reason: str) -> Launch | None:
    """Find the next best launch of the same model by another engine, None if there is none that
    supports the settings.

    `reason`: why the engine of the first cannot start. It is given for all its profiles, so that
    what is reported is what is served.
    """
    failed, selection = launch.selection.chosen.profile, launch.selection
    others = tuple(c for c in selection.compatible if c.profile.engine != failed.engine)
    ranked = tuple(c for c in others if c.profile.model.name == failed.model.name)
    if not ranked:
        return None
    words = f"engine {failed.engine} cannot start: {reason}"
    rejections = tuple(
        Rejection(c.profile, Fit.NOT_INSTALLED, words, missing_engine=words)
        for c in selection.compatible
        if c.profile.engine == failed.engine
    )
    because = f"It replaces {failed.title}: {words}."
    left = Selection(ranked, (*selection.rejections, *rejections), because)
    try:
        return _launch(settings, launch.hardware, launch.own, left)
    except InvalidConstraint:  # a setting that only the engine that failed supports
        return None


def _launch(
    settings: Settings, hardware: Hardware, own: UserCheckpoint | None, selection: Selection
) -> Launch:
    chosen = selection.chosen
    parts = launch_parts()
    for part in parts:
        part.check(settings, chosen.profile, chosen.placement.num_replicas)
    folder = None if own is None else own.folder
    to_fetch = _to_fetch(settings, chosen.profile) if own is None else own.to_fetch
    if to_fetch:
        model_dir = folder or store.folder_of(chosen.profile, settings.cache_path)
    else:
        is_bundled = chosen.profile.artifacts is None
        cache = writable(settings.cache_path) if is_bundled else settings.cache_path
        model_dir = store.resolve(chosen.profile, cache, folder)
    format = format_named(chosen.profile.model.format)
    needs_vocabulary = about(chosen.profile.engine).needs_vocabulary
    vocabulary = _vocabulary(settings, format) if needs_vocabulary else None
    artefact_dir = settings.cache_path / "engines"
    spec = spec_of(chosen.profile, chosen.placement.limits, model_dir, vocabulary, artefact_dir)
    fraction = settings.kvcache_percent or chosen.placement.memory_fraction(chosen.profile)
    spec = replace(spec, memory_fraction=fraction)
    for part in parts:
        spec = part.with_options(spec, chosen.placement, hardware, settings)
    draft = drafts.open_draft(chosen.profile, settings.cache_path, fetching_of(settings))
    if draft is not None:
        options = drafts.with_folder(spec.options, chosen.profile.draft, draft.folder)
        spec, to_fetch = replace(spec, options=options), (*to_fetch, *draft.to_fetch)
    check_place(chosen.profile.model.name, to_fetch, model_dir, settings.cache_path)
    return Launch(
        hardware,
        selection,
        model_dir,
        _as_set(spec, chosen.profile, settings),
        *_names(settings, selection),
        devices=devices_of(chosen.placement, hardware),
        to_fetch=to_fetch,
        own=own,
        draft=draft,
    )


def obtain(settings: Settings, launch: Launch) -> None:
    """Fetch and check files that the model store lacks; raises ModelStoreError with the remedy."""
    if not launch.to_fetch:
        return
    profile, fetching = launch.selection.chosen.profile, fetching_of(settings)
    if launch.draft is not None:
        launch.draft.obtain(fetching)
    if launch.own is not None:
        launch.own.obtain(fetching)
        store.resolve(profile, settings.cache_path, launch.own.folder)
    else:
        store.resolve(profile, settings.cache_path, fetching=fetching)


def _to_fetch(settings: Settings, profile: Profile) -> tuple[FileToFetch, ...]:
    if settings.disable_model_download:
        return ()
    return tuple(store.to_fetch(profile, settings.cache_path))


def spec_of(
    profile: Profile,
    limits: Limits,
    model_dir: Path,
    vocabulary: Path | None = None,
    artefact_dir: Path | None = None,
) -> EngineSpec:
    """Make the engine's spec of a profile, with the limits that it has on this machine."""
    parallelism = profile.parallelism
    has_artefact = profile.engine == "native" and profile.gpu is not None
    return EngineSpec(
        profile.engine,
        options=profile.options,
        limits=limits.model_dump(),
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


def _as_set(spec: EngineSpec, profile: Profile, settings: Settings) -> EngineSpec:
    """The profile with the settings applied; raises InvalidConstraint if the engine lacks one."""
    if settings.max_token_gap_ms is not None:
        spec = _with_gap(spec, profile, settings.max_token_gap_ms)
    if settings.max_queue_length is not None:
        options = {**spec.options, "max_num_waiting": settings.max_queue_length}
        spec = replace(spec, options=options)
    if settings.kv_cache_dtype != "auto":
        spec = _with_kv_dtype(spec, profile, settings.kv_cache_dtype)
    return _invariant(spec, profile) if settings.batch_invariant else spec


def _with_gap(spec: EngineSpec, profile: Profile, milliseconds: float) -> EngineSpec:
    if not about(spec.engine).has_our_scheduler:
        raise InvalidConstraint(
            f"NIM_MAX_TOKEN_GAP_MS is set, and {profile.title} uses engine {spec.engine}, "
            f"which has its own scheduler: choose a profile of another engine, or unset it"
        )
    return replace(spec, options={**spec.options, "max_token_gap_ms": milliseconds or None})


def _with_kv_dtype(spec: EngineSpec, profile: Profile, kv_dtype: str) -> EngineSpec:
    if spec.engine == "llama_cpp":
        raise InvalidConstraint(
            f"NIM_KV_CACHE_DTYPE is {kv_dtype}, and {profile.title} uses engine llama_cpp, which"
            " does not support it: choose a profile of another engine, or unset it"
        )
    return replace(spec, kv_dtype=kv_dtype)


def _invariant(spec: EngineSpec, profile: Profile) -> EngineSpec:
    """Ask for independence of batch neighbours; raises InvalidConstraint if the engine has none."""
    if spec.engine != "native" or spec.num_devices == 0:
        where = "on the CPU" if spec.num_devices == 0 else "on a GPU"
        raise InvalidConstraint(
            f"NIM_BATCH_INVARIANT is set, and {profile.title} uses engine {spec.engine} {where};"
            " only the native engine on a GPU supports it: choose one of its profiles, or unset it"
        )
    return replace(spec, options={**spec.options, "batch_invariant": True})


def devices_of(placement: Placement, hardware: Hardware) -> tuple[Mapping[str, str], ...]:
    """Return each replica's devices, by variables: it sees the GPUs that it was placed on.

    Values that are of no use to others are not hidden.
    """
    if len(placement.gpus) == len(hardware.gpus) and placement.num_replicas == 1:
        return ({},)
    return tuple(
        {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid or str(gpu.index) for gpu in group)}
        if group
        else {}
        for group in placement.by_replica
    )


def environments_of(launch: Launch) -> list[dict[str, str]]:
    """Make the environment of each replica's engine process, without our secrets.

    The profile's values take precedence over the GPUs that the replica sees, and these over the
    engine's library needs.
    """
    library = about(launch.spec.engine).environment
    return [
        engine_environment({**library, **devices, **launch.spec.environment})
        for devices in launch.devices
    ]


def _vocabulary(settings: Settings, format: ChatFormat) -> Path | None:
    """Return the vocabulary as a file, for grammars: engines know no text."""
    folder = writable(settings.cache_path) / "vocabulary"
    try:
        return format.write_vocabulary(folder)
    except OSError as error:
        log.warning(
            "%s cannot be written (%s): requests with structured outputs will be refused; set "
            "NIM_CACHE_PATH to a writable folder",
            folder,
            error.strerror,
        )
        return None


def warn_of_unknown_names() -> None:
    """Warn of unread NIM_* variables: a typing error must not pass silently."""
    unknown = unknown_names()
    answered: dict[str, list[str]] = {}
    for name, _ in unknown:
        answered.setdefault(answer("variables", name), []).append(name)
    for instead, names in answered.items():
        if instead:
            log.warning("%s: %s", ", ".join(names), instead)
    for name, nearest in unknown:
        if name in answered.get("", ()):
            hint = f"did you mean {nearest}?" if nearest else "docs/settings.md lists the settings"
            log.warning("%s is not a setting of this server and has no effect; %s", name, hint)


def warn_of_open_cache(folder: Path) -> None:
    """Warn of a cache that every user of the machine may write: it has the weights that are served,
    and what vouches for them."""
    with contextlib.suppress(OSError):
        mode = folder.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            log.warning(
                "Any user can write to %s (NIM_CACHE_PATH) and so replace the model: run chmod "
                "o-w on it.",
                folder,
            )


def tell(launch: Launch) -> None:
    """Log what was found and chosen, and why, for a person to read."""
    hardware, chosen = launch.hardware, launch.selection.chosen
    if launch.is_elsewhere:
        log.info("Model: %s. %s", chosen.profile.model.name, launch.selection.reason)
        return
    cpu = hardware.cpu
    memory = f"{cpu.num_cores} cores ({cpu.model}), {cpu.total_bytes / GB:.0f} GB memory"
    log.info("Hardware: %s; %s", memory, _gpus(hardware))
    for warning in hardware.warnings:
        log.warning("%s", warning)
    profile = chosen.profile
    log.info("Profile: %s, id %.12s…", profile.name, profile.id)
    log.info("Runs %s", where(chosen.placement))
    log.info("Why: %s Details: `harmonium profiles`.", launch.selection.reason)
    if launch.own is not None:
        log.info("Checkpoint: %s. Served by %s", profile.model.description, profile.source)
    idle = idle_gpus(launch.selection, hardware)
    level = logging.WARNING if hardware.gpus else logging.INFO
    for note in (idle,) if idle else launch.selection.notes:
        log.log(level, "%s", note)
    if launch.to_fetch:
        log.info(
            "%s (%s) of %s are missing: a start downloads them into %s, unless "
            "NIM_DISABLE_MODEL_DOWNLOAD=1 forbids it",
            num_files(len(launch.to_fetch)),
            amount(sum(file.size_bytes for file in launch.to_fetch)),
            profile.model.name,
            launch.model_dir,
        )
    log.info(
        "Model: %s in %s, context of %d tokens, %s engine",
        profile.model.name,
        launch.model_dir,
        chosen.max_model_len,
        profile.engine,
    )


def _gpus(hardware: Hardware) -> str:
    if not hardware.gpus:
        return f"no GPU: {hardware.no_gpu_reason}"
    return f"{hardware.summary}, driver {hardware.driver}"
