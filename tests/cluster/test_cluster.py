"""The chart at the API server of KUBECONFIG: strict validation, install, upgrade, rollback.

No pod needs to run: the server decides about fields, CEL rules and updates of immutable fields.
"""

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.release import CHART, KUBECTL, NEEDS_SERVER, ROOT

HELM = ROOT / ".cache" / "helm" / "4.2.3" / "helm"
SCENARIOS = sorted((CHART / "ci").glob("*-values.yaml"))

pytestmark = [pytest.mark.cluster, NEEDS_SERVER]


def run(program: Path, *arguments: str | Path, given: str = "") -> str:
    done = subprocess.run(
        [program, *arguments], input=given, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    name = f"harmonium-test-{uuid.uuid4().hex[:8]}"
    run(KUBECTL, "create", "namespace", name)
    yield name
    run(KUBECTL, "delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def kinds() -> set[str]:
    """What the server knows, as `kind.group`."""
    listed = run(KUBECTL, "api-resources", "--no-headers", "--output=wide")
    known = set()
    for line in listed.splitlines():
        words = line.split()
        position = next(i for i, word in enumerate(words) if word in ("true", "false"))
        known.add(f"{words[position + 1]} {words[position - 1]}")
    return known


def rendered(scenario: Path, namespace: str) -> list[dict[str, Any]]:
    text = run(HELM, "template", "demo", CHART, "--namespace", namespace, "--values", scenario)
    return [item for item in yaml.safe_load_all(text) if item]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_the_server_accepts_a_scenario_strictly(
    scenario: Path, namespace: str, kinds: set[str]
) -> None:
    items = rendered(scenario, namespace)
    lacked = {f"{item['kind']} {item['apiVersion']}" for item in items} - kinds
    if lacked:
        pytest.skip(f"the server does not have {', '.join(sorted(lacked))}")
    # The test's pod is admitted only where its account is, which a dry run does not make.
    pods = [item for item in items if item["kind"] == "Pod"]
    accounts = {pod["spec"]["serviceAccountName"] for pod in pods}
    for account in accounts:
        run(KUBECTL, "create", "serviceaccount", account, "--namespace", namespace)
    try:
        command = ("apply", "--server-side", "--dry-run=server", "--validate=strict")
        options = ("--force-conflicts", "--namespace", namespace, "--filename=-")
        run(KUBECTL, *command, *options, given=yaml.safe_dump_all(items))
    finally:
        for account in accounts:
            run(KUBECTL, "delete", "serviceaccount", account, "--namespace", namespace)


def test_a_misspelt_field_is_refused_by_the_server(namespace: str) -> None:
    """Otherwise the test above would show nothing."""
    pod = {"containers": [{"name": "x", "image": "x", "redinessProbe": {}}]}
    item = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "wrong"}, "spec": pod}
    command = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "--namespace")
    with pytest.raises(AssertionError, match="redinessProbe"):
        run(KUBECTL, *command, namespace, "--filename=-", given=yaml.safe_dump(item))


def test_a_release_is_installed_upgraded_and_rolled_back(namespace: str) -> None:
    image = ("--set", "image.repository=registry.example.com/harmonium", "--namespace", namespace)
    run(HELM, "install", "demo", CHART, "--set", "replicaCount=0", *image)
    more = "replicaCount=0,environment.NIM_LOG_LEVEL=DEBUG,drainSeconds=60,minReadySeconds=3"
    run(HELM, "upgrade", "demo", CHART, "--set", more, *image)

    def grace_s() -> str:
        path = "{.spec.template.spec.terminationGracePeriodSeconds}"
        query = ("get", "deployment", "demo-harmonium", f"--output=jsonpath={path}")
        return run(KUBECTL, *query, "--namespace", namespace)

    assert grace_s() == "80"
    run(HELM, "rollback", "demo", "1", "--namespace", namespace)
    assert grace_s() == "140"
    run(HELM, "uninstall", "demo", "--namespace", namespace)
