"""Compile constraints.txt: one version of every package for every platform and Python we support.

Run by `make pins`. Versions already pinned stay where they can; delete a line, or all of them, to
let it move. Which platforms are meant is said in pyproject.toml, under tool.uv.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PINS = ROOT / "constraints.txt"
PUBLIC_INDEX = "https://pypi.org/simple"
KEPT = ("UV_CACHE_DIR", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS")  # do not change what is found


def compile_pins(*options: str) -> str:
    """What `uv pip compile` prints for pyproject.toml and the extras that are pinned.

    The public index alone is asked, and for wheels: what a user would have to build is not there.
    Raises CalledProcessError with uv's reason in `stderr`.
    """
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--python", sys.executable]
    command += ["--no-header", "--no-annotate", "--only-binary", ":all:"]
    command += ["--default-index", PUBLIC_INDEX, "--extra", "test"]
    command += ["--extra", "conformance", "--extra", "browser"]
    environment = {k: v for k, v in os.environ.items() if k in KEPT or not k.startswith("UV_")}
    done = subprocess.run(
        [*command, *options, "pyproject.toml"],
        env=environment,
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=True,
    )
    return done.stdout


def without_markers(compiled: str) -> list[str]:
    """The pins alone: as a constraint, one for a package that is not installed does nothing.

    Raises ValueError when a package has two versions, which only a marker could tell apart.
    """
    pins = [line.partition(" ;")[0] for line in compiled.splitlines()]
    names = [pin.partition("==")[0] for pin in pins]
    if double := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two versions of {', '.join(sorted(double))}: bound it in pyproject.toml")
    return pins


def pin(path: Path) -> None:
    """Bring the file up to date with pyproject.toml; raises as `compile_pins` does."""
    everywhere = ("--universal", "--python-version", "3.11", "--fork-strategy", "fewest")
    compile_pins(*everywhere, "--output-file", str(path))  # reads it first: what is pinned stays
    pins = without_markers(path.read_text(encoding="utf-8"))
    path.write_text("\n".join(pins) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        pin(PINS)
    except subprocess.CalledProcessError as error:
        sys.exit(error.stderr)
