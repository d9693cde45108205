"""`harmonium download-to-cache` and `create-model-store`: model files without serving them.

NIM's names and flags. Exit codes: 0 done, 1 it failed, 2 bad arguments.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from engines.factory import cpu_only_engines, installed_engines
from profiles import selector, store
from profiles.catalogue import Catalogue, load
from profiles.checkpoint import check_shards
from profiles.download.source import Wanted
from profiles.errors import InvalidConstraint, ModelStoreError, ProfileError
from profiles.hardware import detect
from profiles.machine import GB
from profiles.models import Model, Profile
from profiles.verdicts import Constraints
from service.run.startup import fetching_of, own_checkpoint
from service.settings.settings import Settings, secret_values
from service.settings.settings import load as load_settings
from service.telemetry import logs


@click.command("download-to-cache", help="Fetch model files into the cache, without serving.")
@click.option(
    "-p",
    "--profile",
    "-m",
    "--model",
    "names",
    multiple=True,
    metavar="NAME",
    help="A profile's id or name, or a model; unset: what this machine would serve.",
)
@click.option("--model-uri", metavar="URI", help="Another checkpoint, as NIM_MODEL_PATH has it.")
@click.option("--all", "is_all", is_flag=True, help="Every model of the catalogue.")
@click.option("--verify", is_flag=True, help="Hash what is there, and fetch anew what is damaged.")
@click.option("--dry-run", is_flag=True, help="Say what would be fetched, and fetch nothing.")
def download_to_cache(
    names: Sequence[str], model_uri: str | None, is_all: bool, verify: bool, dry_run: bool
) -> int:
    settings = _settings({} if model_uri is None else {"model_path": model_uri})
    try:
        if settings.model_path is not None and not names and not is_all:
            _download_own(settings, verify=verify, dry_run=dry_run)
            return 0
        for profile in _wanted(settings, names, is_all):
            _download(profile, settings, verify=verify, dry_run=dry_run)
    except ProfileError as error:
        click.echo(f"harmonium download-to-cache: {error}", err=True)
        return 2 if isinstance(error, InvalidConstraint) else 1
    return 0


@click.command("create-model-store", help="Write a model's files to a plain folder.")
@click.option(
    "-p",
    "--profile",
    "name",
    metavar="NAME",
    help="A profile's id or name, or a model; unset: what this machine would serve.",
)
@click.option("-m", "--model-store", "folder", type=Path, required=True, metavar="FOLDER")
def create_model_store(name: str | None, folder: Path) -> int:
    settings = _settings()
    try:
        (profile,) = _wanted(settings, [name] if name else [], is_all=False)
        source = store.resolve(profile, settings.cache_path, fetching=fetching_of(settings))
        _copy(source, folder)
    except (ProfileError, OSError) as error:
        click.echo(f"harmonium create-model-store: {error}", err=True)
        return 2 if isinstance(error, InvalidConstraint) else 1
    click.echo(f"{profile.model.name} is in {folder}; serve it with NIM_MODEL_PATH={folder}")
    return 0


def _settings(given: Mapping[str, str] | None = None) -> Settings:
    settings = load_settings(given)
    logs.configure(settings.log_level, settings.jsonl_logging, secret_values(settings))
    return settings


def _wanted(settings: Settings, names: Sequence[str], is_all: bool) -> list[Profile]:
    """One profile for each model that is asked for; raises InvalidConstraint."""
    catalogue = load()
    if is_all:
        return [_any_profile(catalogue, model) for model in catalogue.models.values()]
    if names:
        return [_named(catalogue, name) for name in names]
    constraints = Constraints(
        model=settings.model_name,
        goal=settings.profile_goal,
        profile=settings.model_profile,
        tags=settings.tags,
        max_model_len=settings.max_model_len,
        installed=installed_engines(),
        cpu_only=cpu_only_engines(),
    )
    return [selector.select(catalogue.profiles, detect(), constraints).chosen.profile]


def _named(catalogue: Catalogue, name: str) -> Profile:
    for model in catalogue.models.values():
        if name in model.names:
            return _any_profile(catalogue, model)
    for profile in catalogue.profiles:
        if name in (profile.id, profile.name, profile.title):
            return profile
    known = ", ".join(catalogue.models)
    raise InvalidConstraint(
        f"{name!r} is no model ({known}) and no profile; `harmonium profiles` lists them"
    )


def _any_profile(catalogue: Catalogue, model: Model) -> Profile:
    """Some profile of `model`: all of them are started on the same files."""
    return next(profile for profile in catalogue.profiles if profile.model == model)


def _download(profile: Profile, settings: Settings, *, verify: bool, dry_run: bool) -> None:
    model, cache = profile.model, settings.cache_path
    if verify and model.artifacts is not None:
        _remove_damaged(model.name, store.folder_of(model, cache), model.artifacts.files, dry_run)
    if dry_run:
        _tell_size(model.name, store.to_fetch(model, cache))
        return
    click.echo(
        f"{model.name} is whole in {store.resolve(profile, cache, None, fetching_of(settings))}"
    )


def _download_own(settings: Settings, *, verify: bool, dry_run: bool) -> None:
    """What NIM_MODEL_PATH names."""
    own = own_checkpoint(settings)
    assert own is not None
    name = own.name or str(own.folder)
    if verify:
        _remove_damaged(name, own.folder, own.files, dry_run)
    if dry_run:
        _tell_size(name, own.to_fetch)
        return
    own.obtain(fetching_of(settings))
    check_shards(own.folder)
    click.echo(f"{name} is whole in {own.folder}")


def _remove_damaged(name: str, folder: Path, files: Iterable[Wanted], dry_run: bool) -> None:
    """Name every file whose bytes are not the published ones; unless told not to, remove it."""
    for damaged in store.damaged(files, folder):
        click.echo(f"{name}: {damaged} is damaged")
        if not dry_run:
            (folder / damaged).unlink()


def _tell_size(name: str, files: Sequence[Wanted]) -> None:
    size = sum(file.size_bytes for file in files) / GB
    click.echo(f"{name}: {len(files)} files to fetch, {size:.1f} GB")


def _copy(source: Path, folder: Path) -> None:
    """Copy a checkpoint; `folder` appears under its name only when it is whole."""
    if folder.exists():
        raise ModelStoreError(f"{folder} is there already; name a folder that is not")
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        shutil.copytree(source, unfinished, ignore=shutil.ignore_patterns(".*"))
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
