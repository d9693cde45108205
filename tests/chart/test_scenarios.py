"""Each scenario of ci/ lints, renders as the golden file says, and is valid for Kubernetes."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from tests.chart.kinds import CUSTOMS, check

pytestmark = pytest.mark.chart

CHART = Path(__file__).parents[2] / "charts" / "harmonium"
EXAMPLES = sorted((CHART.parents[1] / "docs" / "examples").glob("dynamo-*.yaml"))
GOLDEN = Path(__file__).parent / "golden"
SCENARIOS = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").iterdir())
KUBERNETES_VERSIONS = ("1.25", "1.31", "1.36")
NEEDS = {"enterprise": "1.34"}  # Dynamic Resource Allocation


def values_of(scenario: str) -> Path:
    return CHART / "ci" / f"{scenario}-values.yaml"


def parse(text: str) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all(text) if item]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_passes_strict_lint(
    helm: Callable[..., CompletedProcess[str]], scenario: str
) -> None:
    result = helm("lint", "--strict", CHART, "--values", values_of(scenario))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_is_valid_for_kubernetes(
    template: Callable[..., str], scenario: str, version: str
) -> None:
    if version < NEEDS.get(scenario, ""):
        pytest.skip(f"{scenario} needs Kubernetes {NEEDS[scenario]}")
    rendered = template("--values", values_of(scenario), "--kube-version", f"{version}.0")
    for item in parse(rendered):
        check(item, version)


def test_values_become_fields_of_the_operator(template: Callable[..., str]) -> None:
    values = {
        "autoscaling.type": "hpa",
        "cache.accessMode": "ReadWriteMany",
        "affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey": "z",
        "podAnnotations.a": "b",
        "podLabels.a": "b",
        "priorityClassName": "serving",
        "runtimeClassName": "nvidia",
        "schedulerName": "other",
        "service.annotations.a": "b",
        "service.labels.a": "b",
        "shmSize": "1Gi",
    }
    pairs = ",".join(f"{name}={value}" for name, value in values.items())
    rendered = parse(template("--values", values_of("nim-operator"), "--set", pairs))
    for item in rendered:
        check(item, KUBERNETES_VERSIONS[-1])
    [spec] = [item["spec"] for item in rendered if item["kind"] == "NIMService"]
    assert spec["scale"]["enabled"]
    assert "replicas" not in spec, "the operator allows one of them"
    assert spec["storage"]["sharedMemorySizeLimit"] == "1Gi"
    service = spec["expose"]["service"]
    given = (spec["labels"], spec["annotations"], service["labels"], service["annotations"])
    assert all(each == {"a": "b"} for each in given)
    assert [spec[name] for name in ("priorityClassName", "runtimeClassName", "schedulerName")] == [
        "serving",
        "nvidia",
        "other",
    ]
    assert spec["affinity"]["podAffinity"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_for_dynamos_operator_is_valid(example: Path) -> None:
    """Its API asks for a container `main`; the operator adds the rest to it."""
    for item in parse(example.read_text(encoding="utf-8")):
        check(item, KUBERNETES_VERSIONS[-1])
        for component in item["spec"].get("components", ()):
            containers = component["podTemplate"]["spec"]["containers"]
            assert [container["name"] for container in containers] == ["main"]


def test_every_foreign_schema_is_used(template: Callable[..., str]) -> None:
    rendered = [template("--values", values_of(scenario)) for scenario in SCENARIOS]
    rendered += [example.read_text(encoding="utf-8") for example in EXAMPLES]
    rendered.append(template("--set", "monitoring.rules=true"))
    made = {(item["apiVersion"], item["kind"]) for text in rendered for item in parse(text)}
    assert set(CUSTOMS) <= made


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_renders_as_reviewed(template: Callable[..., str], scenario: str) -> None:
    rendered = template("--values", values_of(scenario))
    golden = GOLDEN / f"{scenario}.yaml"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        golden.write_text(rendered, encoding="utf-8")
    expected = parse(golden.read_text(encoding="utf-8"))
    assert parse(rendered) == expected, "accept with: make chart UPDATE_GOLDEN=1"


def test_the_guides_values_make_what_its_commands_name(
    template: Callable[..., str], tmp_path: Path
) -> None:
    """Those of docs/guides/kubernetes.md as they stand, valid, under the names that it types."""
    guide = (CHART.parents[1] / "docs" / "guides" / "kubernetes.md").read_text()
    values = tmp_path / "values.yaml"
    first, policy, sign_in, _canary = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    values.write_text(first)
    crds = "--api-versions=monitoring.coreos.com/v1"
    rules = tmp_path / "policy.yaml"
    rules.write_text(policy)
    made = parse(template("--values", values, "--values", rules, crds))
    assert {"NetworkPolicy", "ServiceMonitor", "PrometheusRule", "PersistentVolumeClaim"} <= {
        o["kind"] for o in made
    }
    for kind, name in re.findall(r" (deployment|service)/([\w-]+)", guide):
        assert (kind, name) in {(o["kind"].lower(), o["metadata"]["name"]) for o in made}
    for item in made:
        check(item, KUBERNETES_VERSIONS[-1])
    more = tmp_path / "sign-in.yaml"
    more.write_text(sign_in)
    assert "login.example.com" in template("--values", values, "--values", more, crds)
