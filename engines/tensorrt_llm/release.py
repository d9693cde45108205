"""Which releases of TensorRT-LLM the adapter is written for, and whether one of them is here."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final

from engines.adding import command_for

FIRST: Final = (1, 2)
LAST: Final = (1, 3)
WANTED: Final = "1.2 or 1.3"


def missing() -> str | None:
    """Say why TensorRT-LLM cannot run here, None if it can; it is not imported for this."""
    if find_spec("tensorrt_llm") is None:
        return f"not installed: {command_for('tensorrt-llm')}"
    try:
        here = version("tensorrt_llm")
    except PackageNotFoundError:  # a checkout on the path; what it is shows at the start
        return None
    return None if is_wanted(here) else f"not installed: {unwanted(here)}"


def is_wanted(here: str) -> bool:
    """Whether the adapter supports a version."""
    numbers = re.match(r"(\d+)\.(\d+)", here)
    return numbers is not None and FIRST <= (int(numbers[1]), int(numbers[2])) <= LAST


def unwanted(here: str) -> str:
    return f"TensorRT-LLM {here} is here, and {WANTED} is needed (docs/engines.md)"
