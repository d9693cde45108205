"""The catalogue: a YAML file per model and one per engine, validated as a whole.

`profiles/<engine>.yaml` holds `bases`, which say what profiles have in common, and `profiles`, of
which each entry says how it differs. A base may have a base; mappings are merged, null takes a key
away, anything else replaces. An entry is a profile for each of its `base`, `models`, `tp` and `pp`;
`ep: tp` is as many as that. In `source` {tp}, {pp} and {max_num_seqs} mean the profile's, and
the `note` of the nearest base follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from profiles.catalogue.engines import engine_names
from profiles.catalogue.models import Model, Positive, Profile, Record
from profiles.errors import InvalidCatalogue, nearest
from profiles.hardware.gpus import BY_KEY, LOADER

DATA_DIR = Path(__file__).parents[1] / "data"
_Record = TypeVar("_Record", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Every model and profile there is, in a stable order."""

    models: Mapping[str, Model]
    profiles: tuple[Profile, ...]


class _Entry(BaseModel):
    """One or more profiles of an engine: the fields that multiply them; all other fields are
    theirs."""

    model_config = ConfigDict(extra="allow")

    base: tuple[str, ...]
    models: tuple[str, ...]
    tp: tuple[Positive, ...] = (1,)
    pp: tuple[Positive, ...] = (1,)
    ep: Literal["tp"] | None = None
    source: str = ""


class _File(Record):
    """The contents of an engine's file."""

    bases: dict[str, dict[str, Any]]
    profiles: tuple[_Entry, ...]


@cache
def load(data_dir: Path = DATA_DIR) -> Catalogue:
    """Read `models/*.yaml` and `profiles/<engine>.yaml` under `data_dir`, once per process.

    Raises InvalidCatalogue naming the file, the entry, the key and the value that is wrong.
    """
    models = {
        path.stem: _parse(str(path), Model, {**_read(path, taken=("name",)), "name": path.stem})
        for path in sorted((data_dir / "models").glob("*.yaml"))
    }
    found: list[tuple[str, Profile]] = []
    for path in sorted((data_dir / "profiles").glob("*.yaml")):
        found.extend(_profiles(path, models))
    _check_unique(found)
    return Catalogue(models, tuple(sorted((p for _, p in found), key=lambda p: p.title)))


def _profiles(path: Path, models: Mapping[str, Model]) -> Iterator[tuple[str, Profile]]:
    if path.stem not in engine_names():
        hint = nearest(path.stem, engine_names())
        raise InvalidCatalogue(f"{path}: '{path.stem}' is not an engine{hint}")
    file = _parse(str(path), _File, _read(path))
    used: set[str] = set()
    for number, entry in enumerate(file.profiles, 1):
        for base, model, tp, pp in product(entry.base, entry.models, entry.tp, entry.pp):
            where = f"{path}: profile {number} ({base}, {model}, tp {tp}, pp {pp})"
            if model not in models:
                hint = nearest(model, models)
                raise InvalidCatalogue(f"{where}: no models/{model}.yaml describes it{hint}")
            common = _base(where, base, file.bases, used)
            given = _merged(_merged(common, _own(entry, tp, pp)), entry.model_extra or {})
            given["source"] = _source(where, given)
            given |= {"engine": path.stem, "model": models[model]}
            profile = _parse(where, Profile, given)
            _check_gpus(where, profile)
            yield where, profile
    if unused := sorted(file.bases.keys() - used):
        raise InvalidCatalogue(f"{path}: bases: '{unused[0]}' is the base of nothing; remove it")


def _own(entry: _Entry, tp: int, pp: int) -> dict[str, Any]:
    """Return the profile of an entry's own keys on tp * pp GPUs."""
    split = {"tp": tp, "pp": pp, **({"ep": tp} if entry.ep else {})}
    return {"parallelism": split, "source": entry.source}


def _base(
    where: str, name: str, bases: Mapping[str, Mapping[str, Any]], used: set[str]
) -> dict[str, Any]:
    chain: list[Mapping[str, Any]] = []
    names: list[str] = []
    while name:
        if name not in bases or name in names:
            problem = "is its own base" if name in names else f"is not a base{nearest(name, bases)}"
            raise InvalidCatalogue(f"{where}: base: '{name}' {problem}")
        names.append(name)
        chain.append(bases[name])
        name = bases[name].get("base", "")
    used.update(names)
    whole: dict[str, Any] = {}
    for each in reversed(chain):
        whole = _merged(whole, each)
    whole.pop("base", None)
    return whole


def _merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(common)
    for key, value in own.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _merged(result[key], value)
        else:
            result[key] = value
    return result


def _source(where: str, given: dict[str, Any]) -> str:
    values = {
        "tp": given["parallelism"].get("tp", 1),
        "pp": given["parallelism"].get("pp", 1),
        "max_num_seqs": given.get("limits", {}).get("max_num_seqs", ""),
    }
    try:
        text = given["source"].format_map(values)
    except (KeyError, ValueError, IndexError) as error:
        raise InvalidCatalogue(f"{where}: source: {{{error}}} is not a known placeholder") from None
    return " ".join(part for part in (text, given.pop("note", "")) if part)


def _check_gpus(where: str, profile: Profile) -> None:
    for name in profile.gpu.names if profile.gpu else ():
        if name not in BY_KEY:
            hint = nearest(name, BY_KEY)
            raise InvalidCatalogue(f"{where}: gpu.names: '{name}' is not a known GPU{hint}")


def _check_unique(profiles: Iterable[tuple[str, Profile]]) -> None:
    seen: dict[str, str] = {}
    for where, profile in profiles:
        for key in (profile.id, profile.title):
            if key in seen:
                raise InvalidCatalogue(f"{where}: '{key}' is the same as {seen[key]}")
            seen[key] = where


def _parse(where: str, kind: type[_Record], given: Mapping[str, Any]) -> _Record:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"]) or "(the whole)"
        value = "" if problem["type"] == "missing" else f" (got {_short(problem['input'])})"
        raise InvalidCatalogue(f"{where}: {key}: {problem['msg']}{value}") from None


def _read(path: Path, taken: Iterable[str] = ()) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidCatalogue(f"{path}: is not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise InvalidCatalogue(f"{path}: must be a mapping, got {_short(content)}")
    for key in taken:
        if key in content:
            raise InvalidCatalogue(f"{path}: {key}: is given by the file's place; remove it")
    return content


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
