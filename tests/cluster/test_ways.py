"""The ways of docs/guides/kubernetes.md to another model or cache, at a real API server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.release import CHART, NEEDS_SERVER, Release

pytestmark = [pytest.mark.cluster, NEEDS_SERVER]

SMALL = "model=gpt-oss-20b,cache.size=null"


@pytest.fixture
def scenario(request: pytest.FixtureRequest) -> Path:
    name: str = request.param
    return CHART / "ci" / f"{name}-values.yaml"


def size_of(release: Release, claim: str) -> str:
    path = "--output=jsonpath={.spec.resources.requests.storage}"
    return release.kubectl("get", "pvc", claim, path, "--namespace", release.namespace)


@pytest.mark.parametrize("scenario", ["prefetch"], indirect=True)
def test_a_smaller_model_and_back(release: Release) -> None:
    assert not release.begin()
    assert not release.upgrade("model=gpt-oss-20b")
    assert not release.helm("rollback", "demo")
    assert not release.upgrade("model=gpt-oss-20b")
    assert not release.upgrade()
    assert size_of(release, "demo-harmonium-cache") == "160Gi"


@pytest.mark.parametrize("scenario", ["gpu"], indirect=True)
def test_a_larger_model_after_the_claim_grew(release: Release) -> None:
    assert not release.begin(SMALL)
    assert size_of(release, "demo-harmonium-cache") == "40Gi"
    assert "Grow the claim in an upgrade of its own" in release.upgrade("cache.size=null")
    assert "Grow the claim in an upgrade of its own" in release.upgrade("cache.size=160Gi")
    assert not release.upgrade("model=gpt-oss-20b,cache.size=160Gi")
    release.bind()
    assert not release.upgrade("cache.size=160Gi")
    assert not release.helm("rollback", "demo"), "the model, in the claim that grew"
    assert "status.capacity" in release.helm("rollback", "demo", "1"), "as the guide says"
    assert not release.upgrade(SMALL), "the old values instead"
    assert size_of(release, "demo-harmonium-cache") == "160Gi"


@pytest.mark.parametrize("scenario", ["dynamo-worker"], indirect=True)
def test_each_pods_claim_is_made_larger_without_its_pods(release: Release) -> None:
    """Needs the server's controllers: they make the pods, and let go of what is orphaned."""
    assert not release.begin()
    place = ("--namespace", release.namespace)
    told = release.upgrade("model=gpt-oss-120b")
    assert "--cascade=orphan" in told
    remove = ("delete", "statefulset", "demo-harmonium", "--cascade=orphan", "--timeout=60s")
    release.kubectl(*remove, *place)
    assert not release.upgrade("model=gpt-oss-120b,cache.size=160Gi")
    assert not release.upgrade("model=gpt-oss-20b,cache.size=160Gi")
    assert not release.helm("rollback", "demo")


@pytest.mark.parametrize("scenario", ["nim-operator"], indirect=True)
def test_a_new_image_keeps_the_operators_cache(release: Release) -> None:
    assert not release.begin()
    assert not release.upgrade("image.tag=0.3.0")
    assert not release.helm("rollback", "demo")
    assert "delete nimcache demo-harmonium" in release.upgrade("nimOperator.modelPuller=x:1")
    assert not release.helm("uninstall", "demo"), "which keeps the NIMCache"
    install = ("install", "demo", CHART, "--values", release.scenario, "--set", "image.tag=0.3.0")
    assert not release.helm(*install)
