"""Which engine comes first on which GPU, with the figures that say so (data/engine_order.yaml)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from profiles.catalogue.engines import engine_names
from profiles.catalogue.models import Goal, GpuRequirement, Profile, Record
from profiles.errors import InvalidCatalogue
from profiles.hardware.gpus import LOADER
from profiles.hardware.machine import Gpu
from profiles.selection.placement import is_match

_OTHER_PRECISION = "figures of experts in MXFP4; these are in 16 bits, and were not measured"
FILE = Path(__file__).parents[1] / "data" / "engine_order.yaml"


class Preference(Record):
    """An order of engines, and where it holds."""

    gpus: GpuRequirement
    models: tuple[str, ...] = ()  # none: all
    goals: tuple[Goal, ...] = ()  # none: all
    engines: tuple[str, ...]
    because: Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Order:
    """The engines, best first, and why."""

    engines: tuple[str, ...]
    because: str = ""


@cache
def preferences(path: Path = FILE) -> tuple[Preference, ...]:
    """Read the file; raises InvalidCatalogue where it is wrong or names an unknown engine."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
        read = TypeAdapter(tuple[Preference, ...]).validate_python(content)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        raise InvalidCatalogue(f"{path}: {key}: {problem['msg']}") from None
    for number, preference in enumerate(read):
        named = preference.engines
        if not set(named) <= set(engine_names()) or len(set(named)) < len(named):
            known = ", ".join(engine_names())
            raise InvalidCatalogue(f"{path}: {number}.engines: name engines of {known}, each once")
    return read


def order_on(gpu: Gpu | None, profile: Profile, goal: Goal) -> Order:
    """Return the order that holds for a profile's model on a GPU; on a CPU native is first.

    What an entry does not name comes after what it names.

    A MIG slice is of its board's generation but has no name.
    """
    if gpu is None:
        because = "on a CPU it starts in seconds and needs no installation"
        return Order(engine_names(), because)
    for each in preferences():
        is_model = not each.models or profile.model.name in each.models
        if is_model and (not each.goals or goal in each.goals) and is_match(gpu, each.gpus):
            others = (name for name in engine_names() if name not in each.engines)
            of_others = "" if profile.precision == "mxfp4" else f" ({_OTHER_PRECISION})"
            return Order((*each.engines, *others), each.because + of_others)
    return Order(engine_names())
