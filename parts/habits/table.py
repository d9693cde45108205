"""habits.yaml, read when it is first asked for."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from profiles.hardware.gpus import LOADER


@cache
def table(name: str) -> dict[str, Any]:
    file = Path(__file__).with_name("habits.yaml")
    content: dict[str, dict[str, Any]] = yaml.load(file.read_bytes(), LOADER)
    return content[name]
