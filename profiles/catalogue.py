"""The catalogue: one YAML file per model and per profile, validated as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from profiles.errors import InvalidCatalogue, nearest
from profiles.gpus import BY_KEY
from profiles.models import Model, Profile

DATA_DIR = Path(__file__).parent / "data"
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Record = TypeVar("_Record", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Every model and profile there is, in a stable order."""

    models: Mapping[str, Model]
    profiles: tuple[Profile, ...]


def load(data_dir: Path = DATA_DIR) -> Catalogue:
    """Read `models/*.yaml` and `profiles/<model>/<name>.yaml` under `data_dir`.

    Raises InvalidCatalogue naming the file, the key and the value that is wrong.
    """
    models = {
        path.stem: _parse(path, Model, {"name": path.stem})
        for path in sorted((data_dir / "models").glob("*.yaml"))
    }
    paths = sorted((data_dir / "profiles").glob("*/*.yaml"))
    profiles = [_profile(path, models) for path in paths]
    _check_unique(zip(paths, profiles, strict=True))
    return Catalogue(models, tuple(profiles))


def _profile(path: Path, models: Mapping[str, Model]) -> Profile:
    model = models.get(path.parent.name)
    if model is None:
        hint = nearest(path.parent.name, models)
        raise InvalidCatalogue(f"{path}: no models/{path.parent.name}.yaml describes it{hint}")
    profile = _parse(path, Profile, {"model": model})
    for name in profile.gpu.names if profile.gpu else ():
        if name not in BY_KEY:
            hint = nearest(name, BY_KEY)
            raise InvalidCatalogue(f"{path}: gpu.names: '{name}' is not a known GPU{hint}")
    return profile


def _check_unique(profiles: Iterable[tuple[Path, Profile]]) -> None:
    seen: dict[str, Path] = {}
    for path, profile in profiles:
        for key in (profile.id, profile.title):
            if key in seen:
                raise InvalidCatalogue(f"{path}: '{key}' is the same as in {seen[key]}")
            seen[key] = path
        if path.stem != profile.name:
            raise InvalidCatalogue(f"{path}: its content makes it '{profile.name}.yaml'")


def _parse(path: Path, kind: type[_Record], given: dict[str, Any]) -> _Record:
    try:
        return kind.model_validate({**_read(path, taken=given.keys()), **given})
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"]) or "(the whole file)"
        value = "" if problem["type"] == "missing" else f" (got {_short(problem['input'])})"
        raise InvalidCatalogue(f"{path}: {key}: {problem['msg']}{value}") from None


def _read(path: Path, taken: Iterable[str]) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
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
