"""Helm in the versions that `make chart` fetched, and what it renders of the chart."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
HELM_VERSIONS = ("3.17.3", "4.2.3")
IMAGE = "image.repository=registry.example.com/harmonium"


@pytest.fixture(scope="session")
def chart() -> Path:
    return ROOT / "charts" / "harmonium"


@pytest.fixture(scope="session", params=HELM_VERSIONS, ids="helm-{}".format)
def helm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs one version of Helm, which keeps nothing outside the test's own folder."""
    binary = ROOT / ".cache" / "helm" / request.param / "helm"
    assert binary.exists(), f"{binary} is missing: `make chart` fetches it"
    home = tmp_path_factory.mktemp("helm")
    kinds = ("CACHE", "CONFIG", "DATA")
    environment = os.environ | {f"HELM_{kind}_HOME": str(home / kind) for kind in kinds}

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [binary, *arguments], env=environment, capture_output=True, text=True, timeout=60
        )

    return run


@pytest.fixture
def template(
    helm: Callable[..., subprocess.CompletedProcess[str]], chart: Path
) -> Callable[..., str]:
    """Renders the chart as release `demo` of an image, with more arguments, to text."""

    def render(*arguments: str | Path) -> str:
        result = helm("template", "demo", chart, "--set", IMAGE, *arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return render


@pytest.fixture
def objects(template: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    """Renders the chart with `--set` pairs, to objects by kind."""

    def render(*pairs: str) -> dict[str, Any]:
        arguments = [argument for pair in pairs for argument in ("--set", pair)]
        return {item["kind"]: item for item in yaml.safe_load_all(template(*arguments)) if item}

    return render
