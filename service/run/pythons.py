"""Which engines can run here, and in which Python each."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Final

from engines.errors import EngineStartError
from engines.factory import Engines, cpu_only_engines, engines_of, installed_engines
from profiles.errors import InvalidConstraint
from service.settings.settings import Settings

NOTE: Final = Path(sys.prefix) / "harmonium.json"  # tools/install.py leaves it


def engines_here(settings: Settings) -> Engines:
    """Find the engines that can run: in this Python, else in one of their own.

    Raises InvalidConstraint where a Python that was named cannot be asked.
    """
    ours = Engines(installed_engines(), cpu_only_engines())
    installed, cpu_only = dict(ours.installed), dict(ours.cpu_only)
    for engine, reason in ours.installed.items():
        if reason is None:
            continue
        for python in _candidates(settings, engine):
            theirs = _asked(python, engine, settings)
            installed[engine] = theirs.installed.get(engine, reason)
            cpu_only.pop(engine, None)
            if engine in theirs.cpu_only:
                cpu_only[engine] = theirs.cpu_only[engine]
            if installed[engine] is None:
                break
    return Engines(installed, cpu_only)


def python_of(settings: Settings, engine: str) -> Path | None:
    """Return the Python that is to run the engine; None for our own, which goes first."""
    if installed_engines().get(engine) is None:  # one named by its package is ours
        return None
    candidates = _candidates(settings, engine)
    having = (p for p in candidates if _asked(p, engine, settings).installed.get(engine) is None)
    return next(having, next(iter(candidates), None))


def _candidates(settings: Settings, engine: str) -> list[Path]:
    """The Pythons that may have an engine's library: the one named for it, else the one named for
    all, then what the installer made."""
    named = settings.engine_pythons
    chosen = named.get(engine) or named.get("")
    made = _made().get(engine)
    return [python for python in (chosen, made) if python is not None]


def _made() -> dict[str, Path]:
    """The environments that tools/install.py made for this one, as far as they are there."""
    try:
        engines = json.loads(NOTE.read_text(encoding="utf-8")).get("engines", {})
    except (OSError, ValueError):
        return {}
    found = {engine: Path(made["python"]) for engine, made in engines.items()}
    return {engine: python for engine, python in found.items() if python.exists()}


def _asked(python: Path, engine: str, settings: Settings) -> Engines:
    try:
        return _ask_once(python)
    except EngineStartError as error:
        if python in settings.engine_pythons.values():
            raise InvalidConstraint(f"NIM_ENGINE_PYTHON: {error}") from error
        return Engines({engine: f"not installed: {error}"}, {})


@cache
def _ask_once(python: Path) -> Engines:
    return engines_of(python)
