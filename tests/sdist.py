"""The source of a package, from the index by pip, without building anything of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# In place of the package's own backend: metadata is what the source says.
_BACKEND = """
import os, re, shutil

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(directory, config_settings=None):
    text = open("PKG-INFO", encoding="utf-8").read()
    found = (re.search(f"^{key}: (.*)$", text, re.MULTILINE) for key in ("Name", "Version"))
    name, version = (match[1] for match in found)
    info = f"{re.sub('[-_.]+', '_', name)}-{version}.dist-info"
    os.makedirs(os.path.join(directory, info))
    shutil.copy("PKG-INFO", os.path.join(directory, info, "METADATA"))
    return info
"""


def fetch_source(requirement: str, backend: str, folder: Path) -> Path:
    """Fetch `name==version`; `backend` is the module that its pyproject.toml names.

    Skips the test where the index does not answer.
    """
    package, _, module = backend.rpartition(".")
    (folder / "backend" / package).mkdir(parents=True)
    (folder / "backend" / package / "__init__.py").touch()
    (folder / "backend" / package / f"{module}.py").write_text(_BACKEND)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary"]
    command += [":all:", "--no-build-isolation", "--dest", str(folder), requirement]
    environment = os.environ | {"PYTHONPATH": str(folder / "backend")}
    fetched = subprocess.run(command, env=environment, capture_output=True, text=True)
    if fetched.returncode:
        pytest.skip(f"the source of {requirement} cannot be fetched: {fetched.stderr[-300:]}")
    (found,) = folder.glob("*.tar.gz")
    return found
