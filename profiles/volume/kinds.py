"""Whether other hosts may open a volume, by the type of its file system."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

MOUNTS: Final = Path("/proc/self/mountinfo")
# One kernel alone writes to these. A type that is not listed is taken for shared: network file
# systems are many, and a wrong guess must cost convenience, not data.
_LOCAL: Final = frozenset(
    {
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "zfs", "f2fs", "jfs", "reiserfs"),
        *("nilfs2", "tmpfs", "ramfs", "rootfs", "devtmpfs", "hugetlbfs", "overlay", "aufs"),
        *("fuse.fuse-overlayfs", "fuseblk", "vfat", "exfat", "msdos", "ntfs", "ntfs3", "hfsplus"),
        *("squashfs", "erofs", "iso9660", "udf", "ubifs", "ecryptfs"),
    }
)


def shared_type(path: Path) -> str | None:
    """The type of the volume that the path lies on, if other hosts may open it; None if not.

    The path need not exist yet. Where the system does not list its volumes they count as local.
    """
    found = _type_of(Path(os.path.realpath(path)))
    return None if found is None or found in _LOCAL else found


def _type_of(path: Path) -> str | None:
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    best: tuple[int, str] | None = None
    for line in lines:
        mount, _, rest = line.partition(" - ")
        fields, types = mount.split(" "), rest.split(" ")
        if len(fields) < 5 or not types[0]:
            continue
        point = Path(_unescaped(fields[4]))
        is_above = path == point or point in path.parents
        if is_above and (best is None or len(point.parts) >= best[0]):  # a later one lies on top
            best = (len(point.parts), types[0])
    return None if best is None else best[1]


def _unescaped(text: str) -> str:
    """Mount points are written with octal numbers for spaces and similar characters."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
