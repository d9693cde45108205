"""The schema is closed: what is misspelt, mistyped or without effect fails before installing."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.chart

REFUSED = {
    "a misspelt value": ("replicaCuont=2", "replicaCuont"),
    "a misspelt nested value": ("service.prot=80", "prot"),
    "a misspelt probe value": ("probes.startup.periodSecond=1", "periodSecond"),
    "a negative count": ("replicaCount=-1", "replicaCount"),
    "a port out of range": ("service.port=70000", "port"),
    "an unknown cache type": ("cache.type=hostPath", "type"),
    "an existing claim without its name": ("cache.type=existingClaim", "existingClaim"),
    "a size that is no quantity": ("cache.size=lots", "size"),
    "root as the user": ("podSecurityContext.runAsUser=0", "runAsUser"),
    "a way to weaken the container": ("securityContext.privileged=true", "securityContext"),
    "a setting that is a number": ("environment.NIM_MAX_MODEL_LEN=8192", "NIM_MAX_MODEL_LEN"),
    "a setting of another program": ("environment.LD_PRELOAD=x", "LD_PRELOAD"),
    "a setting that belongs to the chart": ("environment.NIM_SERVER_PORT=x", "NIM_SERVER_PORT"),
    "keys in a ConfigMap": ("environment.NIM_API_KEYS=x", "NIM_API_KEYS"),
    "an open door beside a lock": ("auth.open=true,auth.keysSecret=keys", "keysSecret"),
    "a key of its own for each replica": ("replicaCount=2", "auth.keysSecret"),
    "a digest that is none": ("image.digest=latest", "digest"),
    "GPUs in two places": (r"resources.limits.nvidia\.com/gpu=1", "nvidia.com/gpu"),
    "a label that selects the pods": (r"podLabels.app\.kubernetes\.io/name=x", "app.kubernetes"),
}


def paths(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{key}.")


def schema_paths(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in node.get("properties", {}).items():
        yield prefix + key
        yield from schema_paths(value, f"{prefix}{key}.")


@pytest.mark.parametrize("case", REFUSED)
def test_helm_refuses(helm: Callable[..., CompletedProcess[str]], chart: Path, case: str) -> None:
    pair, key = REFUSED[case]
    result = helm("template", "demo", chart, "--set", pair)
    assert result.returncode != 0
    assert key in result.stderr


def test_every_default_is_described_and_every_described_value_has_a_default(chart: Path) -> None:
    schema = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    no_default = {"global", *(f"affinity.{kind}" for kind in schema_affinities(schema))}
    described = set(schema_paths(schema)) - no_default
    free = {"resources.requests", "resources.limits"}
    defaults = {path for path in paths(values) if path.rpartition(".")[0] not in free}
    assert defaults == described


def schema_affinities(schema: dict[str, Any]) -> list[str]:
    return list(schema["properties"]["affinity"]["properties"])


def test_the_chart_can_be_a_dependency(
    helm: Callable[..., CompletedProcess[str]], chart: Path, tmp_path: Path
) -> None:
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "harmonium").symlink_to(chart)
    meta = {"apiVersion": "v2", "name": "parent", "version": "1.0.0"}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(meta), encoding="utf-8")
    result = helm("template", "demo", tmp_path, "--set", "global.region=eu,harmonium.gpus=1")
    assert result.returncode == 0, result.stderr
    assert "name: demo-harmonium" in result.stdout
