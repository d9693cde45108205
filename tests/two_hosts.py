"""Two hosts on one volume, as far as one machine can show them.

The second sees another index (`-shm`) of the first one's SQLite files, as a second kernel does: a
mount of its own lies over it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.small_disk import namespace, why_not

_OVER = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


def as_second_host(database: Path, own_index: Path) -> list[str]:
    """The beginning of a command that runs the rest of it with an index of its own.

    Skips the test where this user may not mount anything.
    """
    own_index.touch()
    return [*with_own_mounts(), "sh", "-c", _OVER, "sh", str(own_index), f"{database}-shm"]


def with_own_mounts() -> list[str]:
    """The beginning of a command that runs the rest in a mount namespace, as a container does."""
    if reason := why_not():
        pytest.skip(f"a second host needs mounts of its own, which are refused here: {reason}")
    return namespace()
