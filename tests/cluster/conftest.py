"""Helm in the versions that `make chart` fetched, and a release of a scenario."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.prepared import prepare
from tests.cluster.release import ROOT, Release


@pytest.fixture(scope="session", autouse=True)
def server() -> None:
    """Make what the scenarios name."""
    if os.environ.get("KUBECONFIG"):
        prepare()


@pytest.fixture(params=["4.2.3", "3.17.3"], ids="helm-{}".format)
def helm(request: pytest.FixtureRequest) -> Path:
    binary: Path = ROOT / ".cache" / "helm" / request.param / "helm"
    assert binary.exists(), f"{binary} is missing: `make chart` fetches it"
    return binary


@pytest.fixture
def release(helm: Path, scenario: Path) -> Iterator[Release]:
    release = Release(helm, scenario)
    yield release
    release.close()
