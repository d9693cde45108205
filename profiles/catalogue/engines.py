"""What the choice of a profile knows of each engine: data/engines/<name>.yaml."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from profiles.errors import InvalidCatalogue
from profiles.hardware.machine import GB

_FOLDER: Final = Path(__file__).parents[1] / "data" / "engines"


class KnownEngine(BaseModel):
    """One engine: the files it reads, and what it makes of the weights on a GPU."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int  # where no figure decides, and in lists
    files: Literal["artifacts", "gguf"] = "artifacts"  # the field of a model with its files
    base_gb: float  # context, kernels, captured graphs; of an engine with fixed buffers, all
    hidden_multiple: int = 1  # experts are padded to a hidden size that this divides
    dense_bytes: float | None = None  # of a weight outside the experts; None: as it is published
    is_fixed: bool = False  # whether a step's size changes nothing
    packed_options: tuple[str, ...] = ()  # of its own, that are for experts in MXFP4 only
    keeps_all: bool = False  # whether layers with a window keep K/V of the whole context too

    @property
    def base_bytes(self) -> int:
        """Bytes needed besides the weights."""
        return int(self.base_gb * GB)


@cache
def known_engines(folder: Path = _FOLDER) -> dict[str, KnownEngine]:
    """Every engine by name, in their order; raises InvalidCatalogue naming what is wrong."""
    found = {path.stem: _read(path) for path in folder.glob("*.yaml")}
    return dict(sorted(found.items(), key=lambda item: item[1].rank))


def engine_of(name: str) -> KnownEngine:
    """The engine of a profile; one that no data file describes computes on other machines."""
    return known_engines().get(name) or KnownEngine(rank=0, base_gb=0)


def engine_names() -> tuple[str, ...]:
    return tuple(known_engines())


def _read(path: Path) -> KnownEngine:
    try:
        return KnownEngine.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        raise InvalidCatalogue(f"{path}: {key}: {problem['msg']}") from None
