"""The question before a large download of a model that no setting names; on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from profiles.catalogue.models import Profile
from profiles.download.progress import amount
from profiles.selection.verdicts import Selection
from profiles.store.store import to_fetch
from service.cli import face
from service.run.download_place import free_bytes
from service.run.startup import Launch
from service.settings.settings import Settings


def model_instead(settings: Settings, launch: Launch) -> str | None:
    """The model that the user chose in place of the one to download, if another; None elsewhere.

    Raises click.Abort where the user chose none.
    """
    named = (settings.model_name, settings.model_path, settings.model_profile)
    is_terminal = sys.stdin.isatty() and face.is_shown(settings)
    if not launch.to_fetch or any(named) or not is_terminal:
        return None
    models = {profile.model.name: _size(profile, settings) for profile in _choices(launch)}
    first, *others = models
    room = amount(free_bytes(launch.model_dir))
    face.line(f"{first} has to be downloaded into {launch.model_dir} ({room} free).")
    width = max(map(len, models))
    for number, (model, size) in enumerate(models.items(), 1):
        click.echo(f"  {number}  {model:<{width}}  {size}", err=True)
    face.line(f"Ctrl-C stops. `harmonium serve {(others or [first])[0]}` does not ask.")
    choice = click.IntRange(1, len(models))
    number = click.prompt("Serve which", default=1, type=choice, err=True)
    chosen = [*models][number - 1]
    return None if chosen == first else chosen


def _choices(launch: Launch) -> Iterator[Profile]:
    """The best profile of each model that can run here, that which was selected first."""
    selection, seen = launch.selection, set[str]()
    demonstrations = (each.profile for each in selection.rejections if each.is_kept_back)
    for profile in (*_profiles(selection), *demonstrations):
        if profile.model.name not in seen:
            seen.add(profile.model.name)
            yield profile


def _profiles(selection: Selection) -> Iterator[Profile]:
    yield selection.chosen.profile
    yield from (each.profile for each in selection.compatible)


def _size(profile: Profile, settings: Settings) -> str:
    files = to_fetch(profile, settings.cache_path)
    if profile.artifacts is None:
        return "only to try the server; nothing to download"
    return amount(sum(file.size_bytes for file in files)) if files else "is here already"
