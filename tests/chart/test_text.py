"""Text of values and releases stays text, and sizes and labels fit, whatever they look like."""

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from tests.chart.conftest import IMAGE
from tests.chart.rendered import Objects, container_of, pod_of

pytestmark = pytest.mark.chart

# Expressions that render a number, or a word of the chart's own.
NUMBERS = (
    r"(?:replicaCount|Replicas|[pP]ort|number|Seconds|Finished|revisionHistoryLimit|gpus"
    r"|maxUnavailable)"
)
INCLUDED = r'include "harmonium\.(?:prefetchArguments|gracePeriod|progressDeadline)"'
QUOTED = r"(?:nindent \d+|int|toJson|sha256sum|quote)"
PLAIN = re.compile(rf'ternary "|{INCLUDED}|\$(?:kind|type)$|.*(?:{NUMBERS}|\| {QUOTED})$')


def test_every_text_of_a_template_is_quoted(chart: Path) -> None:
    bare = []
    for path in sorted((chart / "templates").rglob("*.*")):
        for line in path.read_text(encoding="utf-8").splitlines():
            found = re.match(r"^\s*(?:- )?([\w./-]+): \{\{-? (.*?) -?\}\}$", line)
            if (
                found
                and not PLAIN.match(found[2])
                and found[1] not in ("nodePort", "minReadySeconds")
            ):
                bare.append(f"{path.name}: {line.strip()}")
    assert bare == []


@pytest.mark.parametrize("release", ["123", "1e3", "true", "on", "prod.v1"])
def test_a_release_may_have_any_name(
    helm: Callable[..., CompletedProcess[str]], chart: Path, release: str
) -> None:
    done = helm("template", release, chart, "--set", IMAGE)
    assert done.returncode == 0, done.stderr
    for item in filter(None, yaml.safe_load_all(done.stdout)):
        assert item["metadata"]["labels"]["app.kubernetes.io/instance"] == release
        assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", item["metadata"]["name"])


def test_hosts_may_be_wildcards_and_names_may_be_numbers(objects: Objects) -> None:
    made = objects("ingress.enabled=true,ingress.host=*.example.com", "environmentSecret=123abc")
    assert made["Ingress"]["spec"]["rules"][0]["host"] == "*.example.com"
    made = objects("auth.open=true", "schedulerName=1e3x", "environmentSecret=0x1")
    assert pod_of(made)["schedulerName"] == "1e3x"


def test_a_label_of_the_pods_takes_precedence_over_a_common_one(
    template: Callable[..., str],
) -> None:
    text = template("--set", "commonLabels.team=a,podLabels.team=b")
    lines = [line.strip() for line in text.split("kind: Deployment")[1].splitlines()]
    assert lines.count("team: b") == 1
    assert lines.count("team: a") == 1  # the Deployment's own


def sizes(objects: Objects, *pairs: str) -> dict[str, Any]:
    found: dict[str, Any] = container_of(objects("model=gpt-oss-20b", *pairs))["resources"]
    return found


def test_requests_and_limits_fit_each_other(objects: Objects) -> None:
    assert sizes(objects, "resources.limits.cpu=2")["requests"]["cpu"] == "2"
    assert sizes(objects, "resources.limits.cpu=2500m")["requests"]["cpu"] == "2500m"
    assert sizes(objects, "resources.requests.memory=64Gi")["limits"]["memory"] == "64Gi"


def test_the_job_and_the_test_have_sizes_of_their_own(template: Callable[..., str]) -> None:
    shared = "cache.type=persistentVolumeClaim,cache.accessMode=ReadWriteMany"
    own = "prefetch.resources.limits.cpu=3,tests.resources.limits.cpu=2"
    text = template("--set", f"{shared},prefetch.enabled=true,{own}")
    made = {item["kind"]: item for item in yaml.safe_load_all(text) if item}
    (job,) = made["Job"]["spec"]["template"]["spec"]["containers"]
    assert job["resources"]["limits"] == {"cpu": 3, "memory": "8Gi"}
    assert made["Pod"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] == 2


@pytest.mark.parametrize(
    ("etcd", "ports"),
    [
        ("http://a:2379\\,http://b:4001", [2379, 4001]),
        ("etcd:4001", [4001]),
        ("http://etcd1", [2379]),
    ],
)
def test_the_policy_opens_every_port_of_etcd(objects: Objects, etcd: str, ports: list[int]) -> None:
    made = objects("dynamo.role=worker", "networkPolicy.enabled=true", f"dynamo.etcd={etcd}")
    egress = made["NetworkPolicy"]["spec"]["egress"]
    opened = [[port["port"] for port in rule["ports"]] for rule in egress if "to" not in rule]
    assert opened[1:] == [ports]
