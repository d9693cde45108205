"""`harmonium download-to-cache` and `create-model-store`: model files without serving them.

NIM's names and flags. Exit codes: 0 done, 1 it failed, 2 bad arguments.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import click

from profiles import manifest
from profiles.catalogue.catalogue import Catalogue, load
from profiles.catalogue.models import Model, Profile
from profiles.download.progress import amount, num_files
from profiles.download.source import FileToFetch
from profiles.errors import (
    InvalidConstraint,
    InvalidHardware,
    ModelStoreError,
    NoCompatibleProfile,
    ProfileError,
)
from profiles.hardware.machine import Hardware
from profiles.hardware.written import parse_hardware
from profiles.selection import selector
from profiles.selection.verdicts import Constraints
from profiles.store import drafts, store
from profiles.store.user_checkpoint import open_user
from service.run.machine import visible_hardware
from service.run.pythons import engines_here
from service.run.servable import Servable, constraints_of, fetching_of, servable, user_checkpoint
from service.run.termination import TERMINATED, Terminated
from service.settings.settings import Settings, secret_values
from service.settings.settings import load as load_settings
from service.telemetry import logs


@click.command("download-to-cache")
@click.option(
    "-p",
    "--profile",
    "-m",
    "--model",
    "names",
    multiple=True,
    metavar="NAME",
    help="A profile's id or name, or a model. Default: what this machine would serve.",
)
@click.option(
    "--profiles", "listed", multiple=True, metavar="ID ...", help="Several profiles or models."
)
@click.option(
    "--model-uri", metavar="URI", help="Another checkpoint, in the form of NIM_MODEL_PATH."
)
@click.option(
    "--manifest-file",
    type=Path,
    metavar="FILE",
    help="Write the model manifest to this file, as JSON.",
)
@click.option("--all", "is_all", is_flag=True, help="All models of the catalogue.")
@click.option(
    "--hardware",
    "--gpu",
    "machine",
    metavar="H200X8",
    help="Choose for another machine, as `harmonium profiles --hardware` describes it.",
)
@click.option(
    "--verify", is_flag=True, help="Check the hashes of all files, and download damaged ones again."
)
@click.option("--dry-run", is_flag=True, help="Show what would be downloaded; download nothing.")
@click.argument("more", nargs=-1, metavar="[NAME ...]")
def download_to_cache(
    names: Sequence[str],
    listed: Sequence[str],
    more: Sequence[str],
    model_uri: str | None,
    manifest_file: Path | None,
    is_all: bool,
    machine: str | None,
    verify: bool,
    dry_run: bool,
) -> int:
    """Download model files into the cache, without serving."""
    settings = _settings({} if model_uri is None else {"model_path": model_uri})
    try:
        # NIM's operator writes `--profiles ID ID ID`: what follows the first is an argument.
        asked = [*names, *listed, *more]
        if settings.model_path is not None and not asked and not is_all:
            _download_own(settings, verify=verify, dry_run=dry_run)
        else:
            for profile in _wanted(settings, asked, is_all, machine):
                _download(profile, settings, verify=verify, dry_run=dry_run)
        if manifest_file is not None and not dry_run:
            _write_manifest(settings, manifest_file)
    except ProfileError as error:
        click.echo(f"harmonium download-to-cache: {error}", err=True)
        return 2 if isinstance(error, (InvalidConstraint, InvalidHardware)) else 1
    except (KeyboardInterrupt, Terminated) as stop:
        click.echo(
            f"Stopped. What was downloaded is kept in {settings.cache_path}: run the command again"
            " to continue.",
            err=True,
        )
        return TERMINATED if isinstance(stop, Terminated) else 130
    return 0


@click.command("create-model-store")
@click.option(
    "-p",
    "--profile",
    "name",
    metavar="NAME",
    help="A profile's id or name, or a model. Default: what this machine would serve.",
)
@click.option("--model-repo", "uri", metavar="URI", help="Another checkpoint, by its URI.")
@click.option(
    "-m",
    "--model-store",
    "folder",
    type=Path,
    required=True,
    metavar="FOLDER",
    help="The new folder.",
)
def create_model_store(name: str | None, uri: str | None, folder: Path) -> int:
    """Copy a model's files to a plain folder."""
    settings = _settings()
    try:
        if uri is not None:
            _fetch_store(uri, folder, settings)
            return 0
        if folder.exists():  # told before gigabytes are fetched
            raise ModelStoreError(f"{folder} exists already; name a new folder")
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


def _wanted(
    settings: Settings, names: Sequence[str], is_all: bool, machine: str | None = None
) -> list[Profile]:
    """Choose one profile for each model that is asked for; raises InvalidConstraint."""
    catalogue = load()
    if is_all:
        return [_profile_of(catalogue, model) for model in catalogue.models.values()]
    if names and machine is None:
        return [_named(catalogue, name, settings) for name in names]
    asked = constraints_of(settings, engines_here(settings), Servable(settings.model_name, ()))
    if machine is None:
        return [selector.select(catalogue.profiles, visible_hardware(), asked).chosen.profile]
    hardware = parse_hardware(machine)
    each = [_by_name(catalogue, name, asked) for name in names] or [asked]
    return [_for_machine(catalogue, hardware, one) for one in each]


def _for_machine(catalogue: Catalogue, hardware: Hardware, asked: Constraints) -> Profile:
    """What a machine would serve with the engines of this one, or else with any engine."""
    try:
        return selector.select(catalogue.profiles, hardware, asked).chosen.profile
    except NoCompatibleProfile:
        anywhere = replace(asked, installed=None, cpu_only={})
        return selector.select(catalogue.profiles, hardware, anywhere).chosen.profile


def _by_name(catalogue: Catalogue, name: str, asked: Constraints) -> Constraints:
    """The same wishes for a model or profile that is named."""
    if _model(catalogue, name) is not None:
        return replace(asked, model=name)
    return replace(asked, model=None, profile=name)


def _named(catalogue: Catalogue, name: str, settings: Settings) -> Profile:
    model = _model(catalogue, name)
    if model is not None:
        return _profile_of(catalogue, model, settings.model_profile, settings.tags)
    for profile in catalogue.profiles:
        if name in (profile.id, profile.name, profile.title):
            return profile
    known = ", ".join(catalogue.models)
    raise InvalidConstraint(
        f"{name!r} is not a model ({known}) and no profile; `harmonium profiles` lists them"
    )


def _model(catalogue: Catalogue, name: str) -> Model | None:
    return next((model for model in catalogue.models.values() if name in model.names), None)


def _profile_of(
    catalogue: Catalogue,
    model: Model,
    pinned: str | None = None,
    tags: Mapping[str, str] = MappingProxyType({}),
) -> Profile:
    """A profile of `model` whose files a server with this profile and these tags starts on,
    whatever its machine: the published files unless these exclude them.

    A profile that is pinned for another model says nothing about this one.
    """
    tags = {tag: value for tag, value in tags.items() if tag != "model"}
    wished = selector.asked_for(
        catalogue.profiles, Constraints(model.name, None, None, pinned, tags)
    )
    wished = wished or selector.asked_for(catalogue.profiles, Constraints(model.name, tags=tags))
    if not wished:
        listed = ",".join(f"{tag}={value}" for tag, value in tags.items())
        raise InvalidConstraint(
            f"NIM_TAGS_SELECTOR is {listed}, and no profile of {model.name} has these tags"
        )
    published = [profile for profile in wished if profile.artifacts == model.artifacts]
    return (published or wished)[0]


def _download(profile: Profile, settings: Settings, *, verify: bool, dry_run: bool) -> None:
    model, cache = profile.model, settings.cache_path
    if verify and profile.artifacts is not None:
        folder = store.folder_of(profile, cache)
        _remove_damaged(model.name, folder, profile.artifacts.files, dry_run)
    fetching = fetching_of(settings)
    draft = drafts.open_draft(profile, cache, fetching)
    if dry_run:
        _tell_size(
            model.name, [*store.to_fetch(profile, cache), *(draft.to_fetch if draft else ())]
        )
        return
    click.echo(f"{model.name} is complete in {store.resolve(profile, cache, None, fetching)}")
    if draft is not None:
        draft.obtain(fetching)
        click.echo(f"{draft.name}, its draft head, is complete in {draft.folder}")


def _fetch_store(uri: str, folder: Path, settings: Settings) -> None:
    """Fetch a checkpoint straight into a plain folder, which may be there: a volume, say."""
    own = open_user(uri, settings.cache_path, fetching_of(settings), folder)
    own.obtain(fetching_of(settings))
    own.opened().check_whole()
    click.echo(f"{uri} is in {folder}; serve it with NIM_MODEL_PATH={folder}")


def _write_manifest(settings: Settings, path: Path) -> None:
    """Write the profiles for the downloaded files, in the form of NIM's manifests."""
    found = servable(settings, load())
    content = manifest.content(found.profiles, found.own)
    try:
        path.write_text(json.dumps(content, indent=2), encoding="utf-8")
    except OSError as error:
        raise ModelStoreError(
            f"--manifest-file {path} cannot be written: {error.strerror}"
        ) from error


def _download_own(settings: Settings, *, verify: bool, dry_run: bool) -> None:
    own = user_checkpoint(settings)
    assert own is not None
    name = own.name or str(own.folder)
    if verify:
        _remove_damaged(name, own.folder, own.files, dry_run)
    if dry_run:
        _tell_size(name, own.to_fetch)
        return
    own.obtain(fetching_of(settings))
    own.opened().check_whole()
    click.echo(f"{name} is complete in {own.folder}")


def _remove_damaged(name: str, folder: Path, files: Iterable[FileToFetch], dry_run: bool) -> None:
    """Name every file whose bytes are not the published ones; unless told not to, remove it."""
    for damaged in store.damaged(files, folder):
        click.echo(f"{name}: {damaged} is damaged")
        if not dry_run:
            (folder / damaged).unlink()


def _tell_size(name: str, files: Sequence[FileToFetch]) -> None:
    size = amount(sum(file.size_bytes for file in files))
    click.echo(f"{name}: {num_files(len(files))} to fetch, {size}")


def _copy(source: Path, folder: Path) -> None:
    """Copy a checkpoint; `folder` appears under its name only when it is whole."""
    unfinished = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        shutil.copytree(source, unfinished, ignore=shutil.ignore_patterns(".*"))
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
