"""habits.yaml, read when it is first asked for."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from profiles.hardware.gpus import LOADER

_FILE: Final = Path(__file__).with_name("habits.yaml")


@cache
def table(name: str) -> dict[str, Any]:
    content: dict[str, dict[str, Any]] = yaml.load(_FILE.read_text(encoding="utf-8"), LOADER)
    return content[name]
