"""Every engine by name. Its library is loaded when it is chosen (about.py of its folder).

`python -m engines.factory` says as JSON which can run in that Python.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

from engines.about import About
from engines.errors import EngineStartError
from engines.parts import facets
from engines.queueing.admission import QueuedEngine
from engines.spec import EngineSpec

_ASK_TIMEOUT_S: Final = 60.0  # for a few imports, on a busy machine


class Engines(msgspec.Struct, frozen=True):
    """The engines of one Python."""

    installed: dict[str, str | None]  # installed_engines()
    cpu_only: dict[str, str]  # cpu_only_engines()


def engines_of(python: Path) -> Engines:
    """Ask another Python, where an engine's library has an environment of its own.

    Raises EngineStartError where it cannot be asked, with the remedy.
    """
    command = [str(python), "-P", "-m", "engines.factory"]
    try:
        asked = subprocess.run(
            command, capture_output=True, timeout=_ASK_TIMEOUT_S, check=False, text=True
        )
        return msgspec.json.decode(asked.stdout, type=Engines)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    except msgspec.DecodeError:
        reason = (asked.stderr.strip() or "it printed nothing").splitlines()[-1]
    raise EngineStartError(
        f"{python} cannot run an engine: {reason}; see docs/engines.md for its requirements"
    )


@cache
def abouts() -> dict[str, About]:
    """Every engine by name: a folder of engines/ with an about.py, or a part with an adapter.py."""
    names = [path.parent.name for path in Path(__file__).parent.glob("*/about.py")]
    found = {name: import_module(f"engines.{name}.about").ABOUT for name in names}
    return dict(sorted({**found, **facets("adapter", About)}.items()))


def about(engine: str) -> About:
    """The engine of a name, or of a package with an about.py (`my.package`); raises
    EngineStartError if there is none."""
    try:
        if "." in engine:
            found: About = import_module(f"{engine}.about").ABOUT
            return found
        return abouts()[engine]
    except (KeyError, ModuleNotFoundError):
        known = ", ".join(abouts())
        raise EngineStartError(f"engine {engine!r} is unknown; known engines: {known}") from None


def installed_engines() -> dict[str, str | None]:
    """Say of every known engine whether it can run here: None, or the reason why not."""
    return {name: each.missing() for name, each in abouts().items()}


def cpu_only_engines() -> dict[str, str]:
    """For each engine installed without GPU support: what is missing."""
    return {name: what for name, each in abouts().items() if (what := each.cpu_only())}


def create(spec: EngineSpec) -> QueuedEngine[Any]:
    """Make the engine that a spec names, not yet started; raises EngineStartError."""
    found = about(spec.engine)
    reason = found.missing()
    if reason is not None:
        usable = ", ".join(name for name, each in abouts().items() if each.missing() is None)
        raise EngineStartError(
            f"engine {spec.engine!r} is {reason}; usable engines: {usable or 'none'}"
        )
    return found.create(spec)


def prebuilt(spec: EngineSpec, capability: tuple[int, int]) -> dict[str, str | None]:
    """Every folder that a start leaves to the next one on GPUs of this compute capability, and
    why what is in it cannot be used: None if it can."""
    if spec.artefact_dir is None:
        return {}
    from engines.native.backends.cuda.artefact.parts import states
    from engines.native.config import ModelConfig, NativeConfig

    config = NativeConfig.from_spec(spec)
    return states(config, ModelConfig.from_dir(config.model_dir), capability)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(Engines(installed_engines(), cpu_only_engines())))
