"""Which kernel runs here, and which mounts a process sees.

Within one kernel files are coherent and locks certain.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MOUNTS: Final = Path("/proc/self/ns/mnt")


def this_host() -> str:
    """Name the running kernel: containers of one machine have the same, a reboot makes another."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:  # no Linux, or a sandbox that hides it
        return platform.node()


def these_mounts() -> str:
    """Name what sees the same mounts: a container, or all processes beside containers."""
    try:
        return str(_MOUNTS.stat().st_ino)
    except OSError:
        return ""
