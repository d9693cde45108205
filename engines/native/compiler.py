"""The C compiler that Triton asks for."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path
from typing import Final

# The first release of Triton that launches kernels without a C module built on the machine: 3.7.1
# builds one (`triton/backends/nvidia/driver.py`), 3.9.0 does not.
_BUILDS_NOTHING_FROM: Final = (3, 9)


def missing_for_triton(version: str) -> str | None:
    """What this Triton lacks here to launch kernels, with the remedy; None if nothing."""
    major, minor, *_ = version.split(".")
    if (int(major), int(minor)) >= _BUILDS_NOTHING_FROM:
        return None
    if not any(map(shutil.which, ("gcc", "clang"))):
        return "Triton finds no C compiler (on Debian and Ubuntu: apt-get install gcc libc6-dev)"
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        return (
            f"Triton finds no Python.h in {headers} (on Debian and Ubuntu: apt-get install "
            "python3-dev)"
        )
    return None
