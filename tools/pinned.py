"""Make a virtual environment that has the packages of a file of pins and nothing else.

    .venv/bin/python tools/pinned.py FOLDER PINS

By the uv of this environment, which is pinned as well: where there is another one, or none, makes
no difference. Packages come from where pip's settings say, as tools/install.py has it.
"""

import subprocess
import sys
from pathlib import Path

from installer import CannotInstall, Installer

UV = str(Path(sys.executable).parent / "uv")


def make(folder: Path, pins: Path) -> None:
    """Make the environment, anew if there is one; raises CannotInstall."""
    command = [UV, "--no-config", "venv", "--quiet", "--clear", "--python", sys.executable]
    if subprocess.run([*command, str(folder)]).returncode:
        raise CannotInstall(f"{folder} could not be made; uv's reason is above.")
    installer = Installer(folder / "bin" / "python", UV)
    installer.install("--quiet", "--no-deps", "--requirement", str(pins.resolve()))


if __name__ == "__main__":
    try:
        make(Path(sys.argv[1]), Path(sys.argv[2]))
    except CannotInstall as error:
        sys.exit(f"Cannot install {sys.argv[2]}: {error}")
