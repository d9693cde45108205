"""What the rendered objects promise, one sentence a test."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from tests.chart.conftest import IMAGE
from tests.chart.rendered import Objects, container_of, pod_of

pytestmark = pytest.mark.chart

ENGINE_STOP_S = 10  # what the engine process may take after the drain


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
    expected = {"name": "api", "port": 80, "targetPort": port["name"], "appProtocol": "http"}
    assert service["ports"] == [expected]


def test_gpus_are_asked_for_only_when_wanted(objects: Objects) -> None:
    assert "nvidia.com/gpu" not in container_of(objects())["resources"]["limits"]
    rendered = objects("gpus=2", "model=gpt-oss-20b")
    assert container_of(rendered)["resources"]["limits"] == {"memory": "48Gi", "nvidia.com/gpu": 2}
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod_of(
        rendered
    )["tolerations"]
    slices = objects("gpus=1", "model=gpt-oss-20b", "gpuResource=nvidia.com/mig-2g.35gb")
    assert container_of(slices)["resources"]["limits"]["nvidia.com/mig-2g.35gb"] == 1


def test_the_model_decides_what_the_pod_needs(objects: Objects) -> None:
    def needs(*pairs: str) -> tuple[str, str]:
        rendered = objects(*pairs)
        volume = next(item for item in pod_of(rendered)["volumes"] if item["name"] == "cache")
        return (
            container_of(rendered)["resources"]["limits"]["memory"],
            volume["emptyDir"]["sizeLimit"],
        )

    assert needs() == ("4Gi", "20Gi")
    assert needs("gpus=1", "model=gpt-oss-20b") == ("48Gi", "40Gi")
    assert needs("gpus=1", "model=gpt-oss-120b") == ("128Gi", "160Gi")
    assert needs(
        "gpus=1", "model=gpt-oss-20b", "resources.limits.memory=64Gi", "cache.size=90Gi"
    ) == (
        "64Gi",
        "90Gi",
    )


def test_a_gpu_pod_goes_before_the_next_one_comes(objects: Objects) -> None:
    """On a full cluster the new pod would wait for ever."""
    gpu = ("gpus=1", "model=gpt-oss-20b")
    strategy = objects(*gpu, "replicaCount=2", "auth.open=true")["Deployment"]["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    # `helm --wait` of Helm 3 would not wait for the one pod of a rolling update.
    assert objects(*gpu)["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    assert objects()["Deployment"]["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 1
    own = objects("gpus=1", "model=gpt-oss-20b", "strategy.type=Recreate")
    assert own["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}


def test_no_list_has_a_key_twice(template: Callable[..., str]) -> None:
    """Server-side apply refuses it."""
    pairs = (
        "dynamo.role=worker,dynamo.etcd=http://etcd:2379,networkPolicy.enabled=true,"
        "kvEvents.enabled=true,kvEvents.from[0].podSelector.a=b,"
        "imagePullSecrets[0].name=pull,global.imagePullSecrets[0].name=pull"
    )
    items = [item for item in yaml.safe_load_all(template("--set", pairs)) if item]
    (pod,) = [item["spec"]["template"]["spec"] for item in items if item["kind"] == "Deployment"]
    names = [item["name"] for item in pod["containers"][0]["env"]]
    assert len(names) == len(set(names))
    assert names.index("POD_IP") < names.index("NIM_KV_EVENTS_ENDPOINT"), "it refers to it"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]


def test_a_strategy_has_all_its_fields(objects: Objects) -> None:
    """A default that the API server fills in belongs to nobody: no later upgrade removes it."""

    def of(*pairs: str) -> Any:
        return objects(*pairs)["Deployment"]["spec"]["strategy"]

    assert of("strategy.type=RollingUpdate") == of()
    assert of("strategy.rollingUpdate.maxSurge=0") == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"},
    }
    stateful = objects("cache.type=perPod")["StatefulSet"]["spec"]["updateStrategy"]
    assert stateful == {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
    by_hand = objects("cache.type=perPod", "strategy.type=OnDelete")["StatefulSet"]["spec"]
    assert by_hand["updateStrategy"] == {"type": "OnDelete"}


def test_other_gpus_are_claimed_by_a_template_of_another_name(objects: Objects) -> None:
    """A ResourceClaimTemplate can never be changed."""
    base = ("model=gpt-oss-20b", "dra.enabled=true")
    names = []
    for pairs in (("gpus=1",), ("gpus=2",), ("gpus=1", "dra.selector=x"), ("gpus=1",)):
        rendered = objects(*base, *pairs)
        (claim,) = pod_of(rendered)["resourceClaims"]
        names.append(rendered["ResourceClaimTemplate"]["metadata"]["name"])
        assert claim["resourceClaimTemplateName"] == names[-1]
    assert len(set(names)) == 3
    assert names[0] == names[3]


def test_a_rollout_may_take_as_long_as_a_start(objects: Objects) -> None:
    spec = objects("probes.startup.periodSeconds=7", "probes.startup.failureThreshold=100")[
        "Deployment"
    ]["spec"]
    assert spec["progressDeadlineSeconds"] == 700 + 120
    probe = spec["template"]["spec"]["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 700


def test_one_value_is_the_drain_of_the_server_and_the_grace_of_the_pod(objects: Objects) -> None:
    rendered = objects("drainSeconds=300")
    environment = {item["name"]: item["value"] for item in container_of(rendered)["env"]}
    assert environment["NIM_DRAIN_GRACE_S"] == "300"
    assert pod_of(rendered)["terminationGracePeriodSeconds"] >= 300 + 5 + ENGINE_STOP_S


def test_probes_speak_tls_where_the_server_does(objects: Objects) -> None:
    tls = container_of(objects("tls.mode=tls", "tls.secret=certificates"))
    assert tls["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    mtls = container_of(objects("tls.mode=mtls", "tls.secret=certificates"))
    command = mtls["readinessProbe"]["exec"]["command"]
    assert command == ["python", "-m", "service.http.probe", "8000", "mtls"]


def test_a_claim_for_each_pod_makes_a_stateful_set(objects: Objects) -> None:
    rendered = objects("cache.type=perPod", "replicaCount=2", "auth.open=true")
    spec = rendered["StatefulSet"]["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    mounts = spec["template"]["spec"]["containers"][0]["volumeMounts"]
    assert claim["metadata"]["name"] in {mount["name"] for mount in mounts}
    assert spec["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain"
    assert "Deployment" not in rendered
    assert "PersistentVolumeClaim" not in rendered


def test_the_claim_survives_an_uninstall_unless_told_otherwise(objects: Objects) -> None:
    kept = objects("cache.type=persistentVolumeClaim")["PersistentVolumeClaim"]["metadata"]
    assert kept["annotations"] == {"helm.sh/resource-policy": "keep"}
    pairs = ("cache.type=persistentVolumeClaim", "cache.keep=false")
    assert "annotations" not in objects(*pairs)["PersistentVolumeClaim"]["metadata"]


def test_the_service_selects_neither_the_test_nor_the_download(
    template: Callable[..., str],
) -> None:
    pairs = "model=gpt-oss-20b,prefetch.enabled=true,cache.type=existingClaim,cache.existingClaim=m"
    items = [item for item in yaml.safe_load_all(template("--set", pairs)) if item]
    by_kind = {item["kind"]: item for item in items}
    selector = by_kind["Service"]["spec"]["selector"].items()
    job = by_kind["Job"]["spec"]["template"]["metadata"]["labels"]
    test = by_kind["Pod"]["metadata"]["labels"]
    assert not selector <= job.items()
    assert not selector <= test.items()


def test_the_download_job_runs_nims_command_with_the_pods_settings(
    objects: Objects,
) -> None:
    rendered = objects(
        "model=gpt-oss-20b",
        "prefetch.enabled=true",
        "cache.type=existingClaim",
        "cache.existingClaim=m",
        "environment.NIM_REPOSITORY_OVERRIDE=https://mirror.example.com/models",
    )
    (job,) = rendered["Job"]["spec"]["template"]["spec"]["containers"]
    server = container_of(rendered)
    for field in ("env", "envFrom", "volumeMounts"):
        assert job[field] == server[field]


def test_weights_of_the_users_are_served_from_their_volume(objects: Objects) -> None:
    rendered = objects(
        "gpus=1", "weights.volume.nfs.server=nas", "weights.volume.nfs.path=/x", "weights.path=own"
    )
    container = container_of(rendered)
    environment = {item["name"]: item["value"] for item in container["env"]}
    assert environment["NIM_MODEL_PATH"] == "/models/own"
    assert "NIM_MODEL_NAME" not in environment
    mount = next(item for item in container["volumeMounts"] if item["name"] == "weights")
    assert (mount["mountPath"], mount["readOnly"]) == ("/models", True)


def test_the_network_policy_denies_what_is_not_named(objects: Objects) -> None:
    policy = objects("networkPolicy.enabled=true")["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (ingress,) = policy["ingress"]
    assert ingress["from"] == [{"podSelector": {}}], "pods of the same namespace"
    ports = [port["port"] for rule in policy["egress"] for port in rule["ports"]]
    assert set(ports) == {53, 8000}


def test_an_autoscaler_owns_the_number_of_pods(objects: Objects) -> None:
    rendered = objects("autoscaling.type=hpa", "auth.open=true")
    assert "replicas" not in rendered["Deployment"]["spec"]
    target = rendered["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", "demo-harmonium")


def test_objects_of_the_users_are_templates(template: Callable[..., str]) -> None:
    value = (
        "extraObjects[0]=kind: ConfigMap\napiVersion: v1\nmetadata: {name: '{{ .Release.Name }}-x'}"
    )
    assert "name: 'demo-x'" in template("--set", value)


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
    data = rendered["ConfigMap"]["data"]
    assert data == {"NIM_LOG_LEVEL": "DEBUG", "NIM_JSONL_LOGGING": "1"}


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
    result = helm("template", "a" * 53, chart, "--set", IMAGE, *arguments)
    names = [item["metadata"]["name"] for item in yaml.safe_load_all(result.stdout) if item]
    assert len(names) == 6
    assert all(len(name) <= 63 for name in names)


def test_pods_that_share_a_claim_keep_stored_responses_outside_of_it(objects: Objects) -> None:
    """A rolling update has two pods on the claim, also where one is wished."""
    shared = ("cache.type=persistentVolumeClaim", "cache.accessMode=ReadWriteMany")
    redis = ("environmentFrom.NIM_REDIS_URL.name=r", "environmentFrom.NIM_REDIS_URL.key=k")
    many = ("replicaCount=3", "auth.open=true", "responses.type=pod")

    def place(*pairs: str) -> str | None:
        rendered = objects(*pairs)
        given = {item["name"]: item.get("value") for item in container_of(rendered)["env"]}
        path: str | None = given.get("NIM_RESPONSES_PATH")
        if path is not None:
            mounts = {m["mountPath"]: m["name"] for m in container_of(rendered)["volumeMounts"]}
            volumes = {v["name"]: v for v in pod_of(rendered)["volumes"]}
            assert "emptyDir" in volumes[mounts[str(Path(path).parent)]]
        return path

    assert place(*shared) == place(*shared, *many) == "/var/lib/harmonium/responses.sqlite"
    assert place(*shared, *redis) is None
    assert place(shared[0]) is None


def test_the_chart_runs_the_version_it_is_released_with(chart: Path) -> None:
    project = tomllib.loads((chart.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    meta = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    assert meta["appVersion"] == meta["version"] == project["project"]["version"]


@pytest.mark.parametrize(("mode", "scheme"), [("disabled", "HTTP"), ("tls", "HTTPS")])
def test_kserves_certificate_is_served_and_probed(
    objects: Callable[..., dict[str, Any]], mode: str, scheme: str
) -> None:
    rendered = objects("kubernetes=kserve", "model=gpt-oss-20b", "gpus=1", f"tls.mode={mode}")
    spec = rendered["LLMInferenceService"]["spec"]["template"]
    (container,) = spec["containers"]
    given = {item["name"]: item.get("value") for item in container["env"]}
    is_tls = mode == "tls"
    assert (given.get("NIM_SSL_CERTS_PATH") == "/var/run/kserve/tls/tls.crt") is is_tls
    assert (given.get("NIM_SSL_MODE") == "tls") is is_tls
    for kind in ("livenessProbe", "readinessProbe"):
        assert container[kind]["httpGet"]["scheme"] == scheme
    assert spec["terminationGracePeriodSeconds"] > int(given["NIM_DRAIN_GRACE_S"])
