"""Releases side by side: admitted, upgraded from the last release's chart, and rolled back."""

from __future__ import annotations

import json
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from tests.cluster.release import CHART, NEEDS_SERVER, ROOT, kubectl

pytestmark = [pytest.mark.cluster, NEEDS_SERVER]

LAST_RELEASE = "6d126d51d95f5f457962ffadafde1ce557e287e1"  # 0.2.0
SCENARIOS = {path.name.removesuffix("-values.yaml"): path for path in (CHART / "ci").glob("*.yaml")}
PORT = {
    "enterprise": ("--set", "service.nodePort=30081")
}  # tests/cluster/test_changes.py has 30080
UNRESTRICTED = {"enterprise"}  # its sidecars are not what Pod Security's `restricted` admits
LIMITS = (
    "resources.limits.cpu=8,prefetch.resources.limits.cpu=2,prefetch.resources.limits.memory=6Gi,"
    "tests.resources.requests.memory=128Mi,tests.resources.limits.cpu=1"
)


@pytest.fixture(scope="session")
def last_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = ["git", "archive", LAST_RELEASE, "charts/harmonium"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"git lacks the commit of the last release, {LAST_RELEASE}")
    folder = tmp_path_factory.mktemp("last-release")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return folder / "charts" / "harmonium"


class Space:
    """A namespace whose pods must meet Pod Security's `restricted`."""

    def __init__(self, helm: Path) -> None:
        self.name, self._helm = f"harmonium-test-{uuid.uuid4().hex[:8]}", helm
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.make("Namespace", {"metadata": {"name": self.name, "labels": labels}})

    def make(self, kind: str, fields: dict[str, object]) -> None:
        item = {"apiVersion": "v1", "kind": kind, **fields}
        place = () if kind == "Namespace" else ("--namespace", self.name)
        kubectl("create", "--filename=-", *place, given=json.dumps(item))

    def helm(self, *arguments: str | Path) -> str:
        """What it complains about; empty: it worked."""
        command = [self._helm, *arguments, "--namespace", self.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        return "" if done.returncode == 0 else done.stderr

    def wait_for_pods(self, kind: str, name: str, path: str, number: int) -> None:
        condition = f"--for=jsonpath={{{path}}}={number}"
        kubectl("wait", f"{kind}/{name}", condition, "--timeout=60s", "--namespace", self.name)

    def close(self) -> None:
        for name in [*SCENARIOS, "demo"]:  # a fixed node port is the cluster's
            self.helm("uninstall", name, "--ignore-not-found")
        kubectl("delete", "namespace", self.name, "--wait=false")


@pytest.fixture
def space(helm: Path) -> Iterator[Space]:
    space = Space(helm)
    yield space
    space.close()


def test_releases_of_all_scenarios_are_admitted_beside_each_other(space: Space) -> None:
    space.make("ServiceAccount", {"metadata": {"name": "models"}})  # openshift's
    refused = {}
    for name, values in SCENARIOS.items():
        port = PORT.get(name, ())
        refused[name] = space.helm("install", name, CHART, "--values", values, *port)
    assert not any(refused.values()), refused
    # With controllers, admission decides about each pod.
    for kind in ("deployments", "statefulsets"):
        listed = kubectl("get", kind, "--output=json", "--namespace", space.name)
        for item in json.loads(listed)["items"]:
            metadata, number = item["metadata"], item["spec"]["replicas"]
            if metadata["labels"]["app.kubernetes.io/instance"] not in UNRESTRICTED:
                space.wait_for_pods(kind, metadata["name"], ".status.replicas", number)


def test_every_scenario_of_the_last_release_is_upgraded_and_rolled_back(
    space: Space, last_chart: Path
) -> None:
    refused = {}
    for old in sorted((last_chart / "ci").glob("*-values.yaml")):
        name = old.name.removesuffix("-values.yaml")
        port = PORT.get(name, ())
        refused[name] = [
            space.helm("install", name, last_chart, "--values", old, *port),
            space.helm("upgrade", name, CHART, "--values", CHART / "ci" / old.name, *port),
            space.helm("rollback", name, "1"),
        ]
        space.helm("uninstall", name)
    assert refused
    assert not any(told for steps in refused.values() for told in steps), refused


def test_quotas_and_limit_ranges_can_be_met(space: Space) -> None:
    hard = {"limits.cpu": "40", "limits.memory": "400Gi", "requests.cpu": "40", "pods": "9"}
    space.make("ResourceQuota", {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    limits = {"type": "Container", "min": {"memory": "128Mi"}, "default": {"cpu": "500m"}}
    space.make("LimitRange", {"metadata": {"name": "l"}, "spec": {"limits": [limits]}})
    values = ("--values", SCENARIOS["prefetch"], "--set", LIMITS)
    assert not space.helm("install", "demo", CHART, *values)
    listed = kubectl("get", "jobs,deployments", "--output=json", "--namespace", space.name)
    job, deployment = sorted(json.loads(listed)["items"], key=lambda item: -len(item["kind"]))[::-1]
    space.wait_for_pods("job", job["metadata"]["name"], ".status.active", 1)
    number = deployment["spec"]["replicas"]
    place = deployment["metadata"]["name"]
    space.wait_for_pods("deployment", place, ".status.replicas", number)


@pytest.mark.parametrize("name", ["123", "1e3", "true", "prod.v1"])
def test_a_release_may_have_any_name(space: Space, name: str) -> None:
    values = ("--set", "image.repository=registry.example.com/harmonium")
    assert not space.helm("install", name, CHART, *values)
    assert not space.helm("upgrade", name, CHART, *values, "--set", "drainSeconds=9")
    assert not space.helm("uninstall", name)
