"""What the rendered objects promise, one sentence a test."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.chart

Objects = Callable[..., dict[str, Any]]


def pod_of(objects: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = objects["Deployment"]["spec"]["template"]["spec"]
    return spec


def container_of(objects: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = pod_of(objects)["containers"][0]
    return container


def test_the_pod_runs_as_10001_and_never_as_root(objects: Objects) -> None:
    context = pod_of(objects())["securityContext"]
    assert context["runAsNonRoot"] is True
    assert [context[key] for key in ("runAsUser", "runAsGroup", "fsGroup")] == [10001] * 3
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_container_can_neither_gain_rights_nor_write_its_root(objects: Objects) -> None:
    assert container_of(objects())["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_only_the_cache_and_tmp_are_writable(objects: Objects) -> None:
    mounts = {
        mount["name"]: mount["mountPath"] for mount in container_of(objects())["volumeMounts"]
    }
    assert mounts == {"cache": "/opt/nim/.cache", "tmp": "/tmp"}


def test_no_token_and_no_service_links_reach_the_pod(objects: Objects) -> None:
    rendered = objects()
    assert rendered["ServiceAccount"]["automountServiceAccountToken"] is False
    assert pod_of(rendered)["automountServiceAccountToken"] is False
    assert pod_of(rendered)["enableServiceLinks"] is False


def test_an_existing_service_account_is_used_and_none_is_made(objects: Objects) -> None:
    rendered = objects("serviceAccount.name=models")
    assert "ServiceAccount" not in rendered
    assert pod_of(rendered)["serviceAccountName"] == "models"


def test_probes_ask_live_for_life_and_ready_for_the_rest(objects: Objects) -> None:
    container = container_of(objects())
    paths = {
        kind: container[f"{kind}Probe"]["httpGet"]["path"]
        for kind in ("startup", "liveness", "readiness")
    }
    assert paths == {
        "startup": "/v1/health/ready",
        "liveness": "/v1/health/live",
        "readiness": "/v1/health/ready",
    }


def test_the_service_reaches_the_pods(objects: Objects) -> None:
    rendered = objects("service.port=80")
    labels = rendered["Deployment"]["spec"]["template"]["metadata"]["labels"]
    service = rendered["Service"]["spec"]
    assert service["selector"].items() <= labels.items()
    port = next(port for port in container_of(rendered)["ports"] if port["name"] == "api")
    assert service["ports"] == [{"name": "api", "port": 80, "targetPort": port["name"]}]


def test_gpus_are_asked_for_only_when_wanted(objects: Objects) -> None:
    assert "nvidia.com/gpu" not in container_of(objects())["resources"]["limits"]
    limits = container_of(objects("gpus=2"))["resources"]["limits"]
    assert limits == {"memory": "4Gi", "nvidia.com/gpu": 2}


def test_a_changed_setting_restarts_the_pods(objects: Objects) -> None:
    def annotations(*pairs: str) -> Any:
        return objects(*pairs)["Deployment"]["spec"]["template"]["metadata"]["annotations"]

    assert annotations("environment.NIM_LOG_LEVEL=DEBUG") != annotations()
    assert annotations("service.port=80") == annotations()


def test_settings_and_keys_reach_the_container(objects: Objects) -> None:
    rendered = objects("environment.NIM_LOG_LEVEL=DEBUG", "environmentSecret=keys")
    sources = container_of(rendered)["envFrom"]
    assert sources == [
        {"configMapRef": {"name": rendered["ConfigMap"]["metadata"]["name"]}},
        {"secretRef": {"name": "keys"}},
    ]
    assert rendered["ConfigMap"]["data"] == {"NIM_LOG_LEVEL": "DEBUG"}


def test_keys_are_followed_in_the_secret_that_holds_them(objects: Objects) -> None:
    rendered = objects("auth.keysSecret=callers")
    container = container_of(rendered)
    environment = {item["name"]: item["value"] for item in container["env"]}
    mount = next(item for item in container["volumeMounts"] if item["name"] == "keys")
    assert environment["NIM_API_KEYS_PATH"] == mount["mountPath"]
    assert "subPath" not in mount, "Kubernetes does not update a subPath"
    assert mount["readOnly"] is True
    volume = next(item for item in pod_of(rendered)["volumes"] if item["name"] == "keys")
    assert volume["secret"] == {"secretName": "callers", "defaultMode": 0o440}


def test_it_is_open_only_where_that_is_said(objects: Objects) -> None:
    names = {item["name"] for item in container_of(objects())["env"]}
    assert "NIM_AUTH" not in names
    assert {"name": "NIM_AUTH", "value": "off"} in container_of(objects("auth.open=true"))["env"]


def test_a_claim_is_made_only_when_asked_for(objects: Objects) -> None:
    assert "PersistentVolumeClaim" not in objects()
    rendered = objects("cache.type=persistentVolumeClaim", "cache.size=5Gi")
    claim = rendered["PersistentVolumeClaim"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "5Gi"
    volume = next(item for item in pod_of(rendered)["volumes"] if item["name"] == "cache")
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


@pytest.mark.parametrize(
    ("mode", "strategy"), [("ReadWriteOnce", "Recreate"), ("ReadWriteMany", "RollingUpdate")]
)
def test_a_claim_for_one_node_is_let_go_before_the_next_pod_starts(
    objects: Objects, mode: str, strategy: str
) -> None:
    rendered = objects("cache.type=persistentVolumeClaim", f"cache.accessMode={mode}")
    assert rendered["Deployment"]["spec"]["strategy"]["type"] == strategy


def test_a_digest_wins_over_the_tag(objects: Objects) -> None:
    digest = "sha256:" + "0" * 64
    rendered = objects("image.repository=r/h", "image.tag=1.2", f"image.digest={digest}")
    assert container_of(rendered)["image"] == f"r/h@{digest}"


def test_long_release_names_stay_within_a_label(
    helm: Callable[..., CompletedProcess[str]], chart: Path
) -> None:
    arguments = ("--set", "cache.type=persistentVolumeClaim")
    result = helm("template", "a" * 53, chart, *arguments)
    names = [item["metadata"]["name"] for item in yaml.safe_load_all(result.stdout) if item]
    assert len(names) == 5
    assert all(len(name) <= 63 for name in names)


# Helm 3 renders notes only where it reaches a cluster.
@pytest.mark.parametrize("helm", ["4.2.3"], indirect=True)
def test_the_notes_end_in_a_curl_line_for_the_service(
    helm: Callable[..., CompletedProcess[str]], chart: Path
) -> None:
    arguments = ("--dry-run=client", "--set", "fullnameOverride=assistant,service.port=80")
    result = helm("install", "demo", chart, *arguments)
    assert "port-forward service/assistant 8000:80" in result.stdout
    assert "curl -s http://127.0.0.1:8000/v1/chat/completions" in result.stdout


@pytest.mark.parametrize("helm", ["4.2.3"], indirect=True)
@pytest.mark.parametrize(
    ("values", "told"),
    [
        ("replicaCount=1", "exec deployment/demo-harmonium -- cat /opt/nim/.cache/api-key-8000"),
        ("auth.keysSecret=callers", "one of the keys in the Secret callers."),
        ("environment.NIM_JWT_ISSUER=https://login.example.com", "a token of your identity"),
    ],
)
def test_the_notes_say_where_the_key_is(
    helm: Callable[..., CompletedProcess[str]], chart: Path, values: str, told: str
) -> None:
    result = helm("install", "demo", chart, "--dry-run=client", "--set", values)
    assert told in result.stdout


def test_the_chart_runs_the_version_it_is_released_with(chart: Path) -> None:
    project = tomllib.loads((chart.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    meta = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    assert meta["appVersion"] == meta["version"] == project["project"]["version"]
