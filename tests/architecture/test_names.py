"""Guards of the layout: names that cannot collide, tests that cannot shadow, light imports."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

PACKAGES = ("parts", "service", "profiles", "engines", "auth")
ROOT = Path(__file__).parents[2]


def test_no_other_distribution_provides_our_packages() -> None:
    provided = packages_distributions()
    assert {name for package in PACKAGES for name in provided.get(package, [])} <= {"harmonium"}


def test_no_test_folder_is_a_package() -> None:
    # A library's stand-in is one: it is imported in an environment of its own.
    stand_ins = ROOT / "tests" / "engines" / "tensorrt_llm" / "computing"
    found = (ROOT / "tests").rglob("__init__.py")
    assert [path for path in found if stand_ins not in path.parents] == []


# Each takes a tenth of a second or more to import, and few servers need it: for tools, a Redis,
# tokens, traces; torch is the engine's.
LATE = (
    *("torch", "mcp", "redis", "jose", "cryptography", "httpx2", "rich", "grpc"),
    *("opentelemetry.exporter", "parts.otel.export", "parts.mcp.connection"),
)


@pytest.mark.heavy
def test_an_api_worker_loads_what_its_settings_ask_for_and_no_more() -> None:
    program = f"""
import sys
import profiles.selection.selector, service.run.server, service.run.startup, service.run.worker
from service.run.launching import watching
from service.run.wiring import ServingPart, facets, gate_of
from service.settings.settings import load
settings = load()
facets("serving", ServingPart), watching(settings, "nano")
gate_of(settings)
print([name for name in sys.modules if name.startswith({LATE})])
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr


@pytest.mark.heavy
def test_a_start_imports_no_other_command() -> None:
    check = (
        "import sys; from service.__main__ import cli; cli.get_command(None, 'serve');"
        "print([m for m in sys.modules if m == 'service.cli.keys' or m.endswith('.commands')])"
    )
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr


@pytest.mark.heavy
def test_the_list_of_commands_imports_no_library_of_theirs() -> None:
    check = (
        "import sys; from service.__main__ import main; main(['--help']);"
        "print([m for m in ('fastapi', 'httpx2', 'numpy', 'prompt_toolkit', 'rich', 'torch')"
        " if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert found.stdout.endswith("\n[]\n"), found.stderr
