"""The command that adds an engine's library to this installation."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_INSTALLER = Path(__file__).parents[1] / "tools" / "install.py"
_FLAVOUR = Path(sys.prefix) / "flavour"  # the image has it: tools/packaging/finish
_FLAVOURS: Final = {"": "cuda", "llama-cpp": "cuda", "vllm": "vllm", "tensorrt-llm": "tensorrt-llm"}


def command_for(extra: str = "") -> str:
    """Return 'run `python3 tools/install.py <extra>`', with the path that works from here.

    Without `extra` the installer brings the base up to date for the hardware.

    In the image another flavour is named. An installed wheel has no installer: there the
    checkout's is named.
    """
    if extra in _FLAVOURS and _FLAVOUR.exists():
        return f"use the image of flavour {_FLAVOURS[extra]} (docs/deploy.md)"
    if not _INSTALLER.exists():
        return (
            f"run `{_command('tools/install.py', extra)}` in a checkout of Harmonium "
            "(docs/engines.md)"
        )
    path = min(str(_INSTALLER), os.path.relpath(_INSTALLER), key=len)
    return f"run `{_command(path, extra)}`"


def _command(path: str, extra: str) -> str:
    return f"python3 {path} {extra}".strip()
