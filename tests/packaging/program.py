"""tools/install.py and its parts as modules, as they are when the program runs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tools" / "install.py"
PARTS = ("install.py", "installer.py", "engine_environments.py")
sys.path.insert(0, str(PROGRAM.parent))
install = importlib.import_module("install")
install_helpers = importlib.import_module("installer")
engine_environments = importlib.import_module("engine_environments")
