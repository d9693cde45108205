"""This host's own folder of a user, for what must not lie on a volume that others open too."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path


def own_place(cache: Path, name: str, owner: str = "") -> Path:
    """Where `name` of a cache lies on this host: the same path at each start. Makes nothing.

    `owner`: which of several on this host, if they must not meet there.
    """
    text = f"{os.path.realpath(cache)}\n{owner}"
    digest = hashlib.sha256(text.encode(errors="surrogateescape"))
    return own_folder() / f"{name}-{digest.hexdigest()[:12]}"


def own_folder() -> Path:
    """The folder below TMPDIR, whether it is there or not."""
    return Path(tempfile.gettempdir()) / f"harmonium-{os.geteuid()}"


def make_own_folder() -> Path:
    """Make the folder, for its user alone; raises OSError, also where another user made it."""
    folder = own_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    stat = folder.lstat()
    if folder.is_symlink() or stat.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user; remove it, or set TMPDIR")
    if stat.st_mode & 0o077:
        folder.chmod(0o700)
    return folder
