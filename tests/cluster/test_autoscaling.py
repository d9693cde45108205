"""Switching autoscaling on, and upgrades while it is on, leave the number of pods as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.release import CHART, NEEDS_SERVER, Release

pytestmark = [pytest.mark.cluster, NEEDS_SERVER]

THREE = "auth.open=true,replicaCount=3"
ON = f"{THREE},autoscaling.type=hpa,autoscaling.maxReplicas=9,autoscaling.minReplicas"


@pytest.fixture
def scenario() -> Path:
    return CHART / "ci" / "default-values.yaml"


def assert_has(release: Release, kind: str, number: int) -> None:
    path = "--output=jsonpath={.spec.replicas}"
    place = (f"{kind}/demo-harmonium", path, "--namespace", release.namespace)
    assert release.kubectl("get", *place) == str(number)


@pytest.mark.parametrize("kind", ["deployment", "statefulset"])
def test_the_number_of_pods_stays(release: Release, kind: str) -> None:
    """Needs the server's controllers: the autoscaler raises the number to its least."""
    more = ",cache.type=perPod" if kind == "statefulset" else ""

    def wait_for(number: int) -> None:
        condition = f"--for=jsonpath={{.spec.replicas}}={number}"
        place = ("--timeout=600s", "--namespace", release.namespace)
        release.kubectl("wait", f"{kind}/demo-harmonium", condition, *place)

    assert not release.begin(THREE + more)
    wait_for(3)
    assert not release.upgrade(f"{ON}=2{more}")
    assert_has(release, kind, 3)
    assert not release.upgrade(f"{ON}=2,drainSeconds=60{more}")
    assert_has(release, kind, 3)
    assert not release.helm("rollback", "demo")
    assert_has(release, kind, 3)
    assert not release.upgrade(f"{ON}=5{more}")
    wait_for(5)
    for drain_s in (61, 62):
        assert not release.upgrade(f"{ON}=5,drainSeconds={drain_s}{more}")
        assert_has(release, kind, 5)
    assert not release.helm("rollback", "demo")
    assert_has(release, kind, 5)
