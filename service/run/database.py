"""Which database the settings ask for, and where its file lies; what several servers share.

SQLite's log needs one host: a file lies on a volume that no other host may open. Where the cache
may be shared it lies in this host's own folder below TMPDIR.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engines.parts import facets
from profiles.volume.host import these_mounts
from profiles.volume.own import own_place
from service.settings.settings import Settings
from service.store import sqlite_file
from service.store.base import ScriptDatabase, StoreError
from service.store.owner import OpenElsewhere, check_volume
from service.store.sqlite import Database, SqliteDatabase, tell_own_place

if TYPE_CHECKING:
    from service.admission.remote import RemoteLimits

log = logging.getLogger(__name__)

FILE_NAME: Final = "responses.sqlite"
FOLDER_NAME: Final = (
    "responses"  # in the cache, readable by its owner only: the cache itself may be shared
)
_ONE_HOST = (
    "name a file on this host's own disk (on Kubernetes an emptyDir or a claim of this pod alone), "
    "or set NIM_REDIS_URL to share responses"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the file lies that no setting names."""

    path: Path
    spare: Path | None  # where another host has that one open
    why_own: OpenElsewhere | None = None  # it is not in the cache


class SharedPart:
    """SHARED of parts/<name>/shared.py: what several servers share."""

    def is_asked(self, settings: Settings) -> bool:
        """Whether the settings ask for it."""
        return False

    def database(self, settings: Settings) -> ScriptDatabase:
        """The database of all servers; it is not asked yet."""
        raise NotImplementedError

    def limits(self, settings: Settings) -> RemoteLimits:
        """Counts of the callers of all servers."""
        raise NotImplementedError


def shared_of(settings: Settings) -> SharedPart | None:
    """What the servers share, if the settings ask for it."""
    parts = facets("shared", SharedPart).values()
    return next((part for part in parts if part.is_asked(settings)), None)


def place_in(cache: Path) -> Place:
    """The file in the cache, or this host's own. A container that once needed its own stays with
    it, so that all workers of a server, and its next start, find the same one."""
    path = cache / FOLDER_NAME / FILE_NAME
    try:
        check_volume(path)
    except OpenElsewhere as error:
        return Place(own_place(cache, FOLDER_NAME) / FILE_NAME, None, error)
    own = own_place(cache, FOLDER_NAME, these_mounts()) / FILE_NAME
    if own.exists():
        return Place(own, None, OpenElsewhere(f"{path} was open on another host before"))
    return Place(path, own)


def check_place(settings: Settings) -> None:
    """Say where responses are kept if it is not in the cache; for the start of a server.

    Raises StoreError where the named file is on a volume that other hosts may open. What else is
    wrong with it database_of() says.
    """
    if shared_of(settings) is not None:
        return
    if settings.responses_path is not None:
        try:
            check_volume(settings.responses_path)
        except OpenElsewhere as error:
            raise _refused(settings, settings.responses_path, error) from error
        return
    place = place_in(settings.cache_path)
    if place.why_own is not None:
        tell_own_place(place.why_own, place.path)


def database_of(settings: Settings) -> Database:
    """The database: that of all servers, the file that was named, or one that no setting names.

    Raises StoreError when the named file cannot be opened; without a name, a folder that cannot be
    written leaves responses in memory, with a warning. Several workers cannot share memory: for
    them the file must open.
    """
    if (shared := shared_of(settings)) is not None:
        return shared.database(settings)
    path, spare = settings.responses_path, None
    if path is None:
        place = place_in(settings.cache_path)
        path, spare = place.path, place.spare
        _prepare(settings.cache_path, place)
        if (settings.api_workers or 1) == 1:
            database = SqliteDatabase(path, spare=spare, can_fall_back=True)
            if _may_be_there(path):  # what is wrong is reported now; else it is made when used
                with contextlib.suppress(StoreError):  # locked: only for a while, perhaps
                    database.open()
            return database
    database = SqliteDatabase(path, spare=spare)
    try:
        database.open()
    except StoreError as error:
        raise _refused(settings, path, error.__cause__) from error
    return database


def _refused(settings: Settings, path: Path, cause: BaseException | None) -> StoreError:
    shown = f"is {path}" if settings.responses_path else f"is not set, so {path} is tried"
    is_shared = isinstance(cause, OpenElsewhere)
    remedy = _ONE_HOST if is_shared else "set it to a file in a folder that this user can write to"
    return StoreError(f"NIM_RESPONSES_PATH {shown}: {cause}; {remedy}")


def _prepare(cache: Path, place: Place) -> None:
    """Make the place private; a file of an earlier release moves there from the cache."""
    folder, earlier = place.path.parent, cache / FILE_NAME
    try:
        if place.why_own is not None:
            return
        if folder.is_dir():
            sqlite_file.tighten(folder, 0o700)
        if earlier.exists() and not place.path.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
            sqlite_file.move(earlier, place.path)
    except OSError as error:
        log.warning("%s cannot be kept for this user alone: %s", folder, error)


def _may_be_there(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:  # a folder of another uid that used this cache before
        return True
