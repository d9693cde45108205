"""Classes made of surface.json."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SURFACE = json.loads((Path(__file__).parents[2] / "surface.json").read_text())
ATTRIBUTES = SURFACE["attributes"]


def checked(what: str, known: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """All parameters with their values; raises TypeError and ValueError as strict classes do."""
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"{what} got an unexpected keyword argument {name!r}")
        choices = known[name].get("one_of")
        if choices is not None and value not in choices:
            raise ValueError(f"{what}.{name} is {value!r}; it takes {choices}")
        kind = known[name].get("class")
        if kind is not None and value is not None and type(value).__name__ != kind:
            raise ValueError(f"{what}.{name} is no {kind}: {value!r}")
    for name, has in known.items():
        if has.get("is_needed") and given.get(name) is None:
            raise ValueError(f"{what}.{name} is missing")
    return {name: given.get(name, has.get("default")) for name, has in known.items()}


def class_of(name: str) -> type:
    """A class that takes the parameters of one of TensorRT-LLM's, by name only."""
    known = SURFACE["classes"][name]

    def __init__(self: Any, **given: Any) -> None:
        self.__dict__ |= checked(name, known, given)
        self.given = given

    return type(name, (), {"__init__": __init__, "model_fields": known})


def made(name: str, **values: Any) -> Any:
    """An object with attributes of a class that TensorRT-LLM makes itself; it has no other."""
    assert values.keys() <= {*ATTRIBUTES[name]}, name
    return SimpleNamespace(**values)
