"""Guards of the layout: names that cannot collide, tests that cannot shadow, light imports."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

PACKAGES = ("service", "profiles", "engines", "auth")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_other_distribution_provides_our_package(package: str) -> None:
    assert set(packages_distributions().get(package, [])) <= {"harmonium"}


def test_no_test_folder_is_a_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_importing_what_serves_does_not_import_torch() -> None:
    modules = "service.run.server, service.run.startup, profiles.selector, auth.base, engines.base"
    check = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_a_start_imports_no_other_command() -> None:
    check = "import sys, service.__main__; sys.exit('service.cli.keys' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
