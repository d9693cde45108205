"""The command that adds an engine's library to this installation."""

from __future__ import annotations

import os
from pathlib import Path

_INSTALLER = Path(__file__).parents[1] / "tools" / "install.py"


def command_for(extra: str = "") -> str:
    """Return 'run `python3 tools/install.py <extra>`', with the path that works from here.

    Without `extra` the installer brings the base up to date for the hardware.

    The image and an installed wheel have no installer: there the checkout's is named.
    """
    if not _INSTALLER.exists():
        return (
            f"run `{_command('tools/install.py', extra)}` in a checkout of Harmonium "
            "(docs/engines.md)"
        )
    path = min(str(_INSTALLER), os.path.relpath(_INSTALLER), key=len)
    return f"run `{_command(path, extra)}`"


def _command(path: str, extra: str) -> str:
    return f"python3 {path} {extra}".strip()
