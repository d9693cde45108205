"""What an engine is asked to run: everything a profile says that is not about choosing one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from engines.errors import EngineStartError


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Which engine to run and with what, in plain JSON; None or empty leaves the choice to the
    engine."""

    engine: str
    options: Mapping[str, Any] = field(default_factory=dict)  # the engine's own, in its own names
    limits: Mapping[str, int] = field(default_factory=dict)  # max_model_len, max_num_seqs, ...
    model_dir: str | None = None
    vocabulary_path: str | None = None  # the tokens' bytes, for grammars
    artefact_dir: str | None = None  # where the engine keeps what makes its next start fast
    precision: str | None = None  # of the weights
    kv_dtype: str | None = None
    memory_fraction: float | None = None  # of a device's memory
    num_devices: int = 0  # GPUs; 0: the CPU
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    attention_dp: bool = False  # every GPU holds all attention weights and its own sequences
    # What parts/<name>/engine.py gets, by part; others are off. It may have secrets.
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict)  # added to the engine process's


_ALWAYS = {"engine", "options", "environment", "parts"}  # the process sets its environment


def check_understood(spec: EngineSpec, understood: Collection[str]) -> None:
    """Raise EngineStartError naming a field that is set and that the engine does not understand.

    So nothing of a profile is lost on its way to an engine.
    """
    for part in spec.parts:
        if part not in understood:
            raise EngineStartError(
                f"engine {spec.engine!r} cannot be started with {part}; choose another profile"
            )
    nothing = EngineSpec(spec.engine)
    for each in fields(spec):
        value = getattr(spec, each.name)
        if each.name in _ALWAYS or each.name in understood or value == getattr(nothing, each.name):
            continue
        raise EngineStartError(
            f"engine {spec.engine!r} cannot be started with {each.name} {value!r}; "
            "choose another profile"
        )


def check_names(kind: str, names: Collection[str], known: Collection[str]) -> None:
    """Raise EngineStartError naming one that is not known, and the nearest that is."""
    for name in names:
        if name not in known:
            nearest = get_close_matches(name, known, n=1, cutoff=0.0)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise EngineStartError(f"{kind} {name!r} is unknown{hint}")
