"""A table of kernel variants as JSON, as `build-engine --tune` keeps it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

from engines.native.backends.cuda.choices.variants import (
    Choices,
    Grouped,
    StreamLaunch,
    Table,
    Tiles,
)

_KINDS: Final[dict[str, Any]] = {"tiles": Tiles, "stream": StreamLaunch, "grouped": Grouped}


def to_json(table: Table) -> dict[str, Any]:
    """The variants of decode steps; those of prefills are not measured."""
    return {str(rows): _of_choices(choices) for rows, choices in table.decode.items()}


def of_json(stored: dict[str, Any], base: Table, measured_on: str) -> Table:
    """The table whose decode variants were kept; raises ValueError if they are not a table's."""
    try:
        decode = {int(rows): _choices_of(each) for rows, each in stored.items()}
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not kernel choices: {error!r}") from error
    if decode.keys() != base.decode.keys():
        raise ValueError(f"kernel choices for {sorted(decode)} rows, not {sorted(base.decode)}")
    return replace(base, decode=decode, measured_on=(measured_on,))


def _of_choices(choices: Choices) -> dict[str, Any]:
    values: dict[str, Any] = {each.name: getattr(choices, each.name) for each in fields(choices)}
    for kind, of in _KINDS.items():
        values |= {n: {kind: v._asdict()} for n, v in values.items() if isinstance(v, of)}
    return {**values, "early": sorted(choices.early)}


def _choices_of(stored: dict[str, Any]) -> Choices:
    values = {
        name: _KINDS[next(iter(value))](**next(iter(value.values())))
        if isinstance(value, dict)
        else value
        for name, value in stored.items()
    }
    return Choices(**{**values, "early": frozenset(values["early"])})
