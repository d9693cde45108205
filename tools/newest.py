"""Make build/newest: Harmonium with the newest release of everything.

    .venv/bin/python tools/newest.py

The bounds of pyproject.toml are not kept, for its own requirements and those of its tests: what
breaks with a release that we do not allow yet is seen the night after.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from installer import ROOT, CannotInstall, Installer, say

FOLDER = ROOT / "build" / "newest"
UV = str(Path(sys.executable).parent / "uv")


def make() -> None:
    """Make the environment anew; raises CannotInstall."""
    say(f"Making {FOLDER.relative_to(ROOT)} of the newest versions ...")
    command = [UV, "--no-config", "venv", "--quiet", "--clear", "--python", sys.executable]
    if subprocess.run([*command, str(FOLDER)]).returncode:
        raise CannotInstall(f"{FOLDER} could not be made; uv's reason is above.")
    overrides = FOLDER / "unbounded.txt"
    overrides.write_text("\n".join(unbounded()) + "\n", encoding="utf-8")
    Installer(FOLDER / "bin" / "python", UV).install(
        "--quiet", "--override", str(overrides), "--editable", ".[test]"
    )


def unbounded() -> "list[str]":
    """What pyproject.toml asks for, without bounds; markers stay."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    parts = (requirement.partition(";") for requirement in asked)
    return [re.split("[<>=!~]", name)[0] + then + marker for name, then, marker in parts]


if __name__ == "__main__":
    try:
        make()
    except CannotInstall as error:
        sys.exit(f"Cannot install the newest versions: {error}")
