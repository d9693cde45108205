"""tools/install.py and its parts as modules, as they are when the program runs."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tools" / "install.py"
PARTS = ("install.py", "installer.py", "prerequisites.py", "engine_environments.py")
sys.path.insert(0, str(PROGRAM.parent))
install = importlib.import_module("install")
prerequisites = importlib.import_module("prerequisites")
install_helpers = importlib.import_module("installer")
engine_environments = importlib.import_module("engine_environments")


def installed_checkout(checkout: Path, folder: str = ".venv", gpu: str = "") -> Path:
    """The installer in a folder whose environment has all that it would install, as it notes."""
    (checkout / "tools").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", *(f"tools/{part}" for part in PARTS)):
        shutil.copy(ROOT / name, checkout / name)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", checkout / folder], check=True)
    code = (
        f"import install; environment = install.Environment(install.ROOT / {folder!r}); "
        f"environment.write_note(['test'], {gpu!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=checkout / "tools")
    return checkout
