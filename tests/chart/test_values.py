"""The schema is closed: what is misspelt, mistyped or without effect fails before installing."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from tests.chart.conftest import IMAGE

pytestmark = pytest.mark.chart

PROFILE = "0" * 64  # the schema knows their form only
DYNAMO = "dynamo.etcd=http://etcd:2379,networkPolicy.enabled=true"
SHARED = "cache.type=persistentVolumeClaim,cache.accessMode=ReadWriteMany"
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
    "no image": ("image.repository=", "image.repository"),
    "GPUs without a model": ("gpus=1", "gpt-oss-20b or gpt-oss-120b"),
    "a cache that cannot hold the model": (
        "gpus=1,model=gpt-oss-120b,cache.size=20Gi",
        "needs 122Gi",
    ),
    "memory that cannot hold the model": (
        "gpus=1,model=gpt-oss-120b,resources.limits.memory=8Gi",
        "needs 72Gi",
    ),
    "one node's claim for two pods": (
        "replicaCount=2,auth.open=true,cache.type=persistentVolumeClaim",
        "cache.accessMode",
    ),
    "an existing claim for two pods, if it is one node's": (
        "replicaCount=2,auth.open=true,cache.type=existingClaim,cache.existingClaim=m",
        "cache.accessMode",
    ),
    "an existing claim beside another cache": (
        "cache.existingClaim=m",
        "cache.existingClaim has no effect with cache.type: emptyDir",
    ),
    "an endpoint picker without an InferencePool": (
        "inferencePool.endpointPicker.name=p",
        "has no effect",
    ),
    "a folder of weights without its volume": ("weights.path=x", "weights.volume"),
    "a download Job beside one node's claim": (
        "prefetch.enabled=true,cache.type=persistentVolumeClaim",
        "prefetch.enabled",
    ),
    "a download Job beside weights": (
        f"{SHARED},prefetch.enabled=true,weights.volume.nfs.server=x,weights.path=m",
        "there is nothing to download",
    ),
    "a download for a machine without a Job": ("prefetch.hardware=h100", "prefetch.enabled"),
    "one file of responses for several pods": (
        f"{SHARED},replicaCount=2,auth.open=true",
        "set responses.type: pod",
    ),
    "one file of responses for pods to come": (
        f"{SHARED},autoscaling.type=hpa,auth.open=true",
        "or NIM_REDIS_URL in environmentFrom",
    ),
    "a path of responses on a shared claim": (
        f"{SHARED},environment.NIM_RESPONSES_PATH=/opt/nim/.cache/r.sqlite",
        "environment.NIM_RESPONSES_PATH",
    ),
    "responses in two places": (
        "responses.type=pod,environmentFrom.NIM_REDIS_URL.name=r,environmentFrom.NIM_REDIS_URL.key=k",
        "leave one of them out",
    ),
    "tools said twice": (
        "tools.run={python},environmentFrom.NIM_BUILTIN_TOOLS.name=t,"
        "environmentFrom.NIM_BUILTIN_TOOLS.key=k",
        "leave one of them out",
    ),
    "tools of a worker": (
        f"{DYNAMO},dynamo.role=worker,tools.run={{python}}",
        "tools.run has no effect on workers",
    ),
    "responses of a worker": (
        f"{DYNAMO},dynamo.role=worker,responses.type=pod",
        "responses.type has no effect on workers",
    ),
    "a surge of a StatefulSet": (
        "cache.type=perPod,strategy.rollingUpdate.maxSurge=1",
        "no Recreate and no maxSurge",
    ),
    "a StatefulSet's strategy of a Deployment": ("strategy.type=OnDelete", "has no OnDelete"),
    "a rolling update beside another strategy": (
        "strategy.type=Recreate,strategy.rollingUpdate.maxSurge=1",
        "set it to null",
    ),
    "a misspelt strategy": ("strategy.rollingUpdate.maxSurg=1", "maxSurg"),
    "a part of the pods that is no number": (
        "strategy.rollingUpdate.maxUnavailable=half",
        "maxUnavailable",
    ),
    "a rolling update that may not move": (
        "strategy.rollingUpdate.maxSurge=0,strategy.rollingUpdate.maxUnavailable=0",
        "cannot both be 0",
    ),
    "a variable that the chart sets": (
        "extraEnv[0].name=NIM_SERVER_PORT,extraEnv[0].value=x",
        "extraEnv.NIM_SERVER_PORT",
    ),
    "a setting in two places": (
        "environmentFrom.NIM_MODEL_NAME.name=a,environmentFrom.NIM_MODEL_NAME.key=b",
        "environmentFrom.NIM_MODEL_NAME: set model",
    ),
    "a volume that the chart has": ("extraVolumes[0].name=tmp", "tmp is there twice"),
    "a mount that the chart has": (
        "extraVolumeMounts[0].name=v,extraVolumeMounts[0].mountPath=/tmp",
        "/tmp is there twice",
    ),
    "a sidecar with the server's name": ("sidecars[0].name=harmonium", "harmonium is there twice"),
    "a node port of a Service without one": ("service.nodePort=30001", "need NodePort"),
    "a node port that nodes do not have": (
        "service.type=NodePort,service.nodePort=8000",
        "service.nodePort: a node has 30000-32767",
    ),
    "source ranges of a Service without one": (
        "service.loadBalancerSourceRanges[0]=10.0.0.0/8",
        "needs LoadBalancer",
    ),
    "fewer pods at most than at least": ("autoscaling.minReplicas=9", "above autoscaling.max"),
    "a StatefulSet whose pods could not be labelled": (
        f"cache.type=perPod,fullnameOverride={'a' * 53}",
        "room for 52",
    ),
    "TLS without a certificate": ("tls.mode=tls", "tls.secret"),
    "TLS where the endpoint picker scrapes": (
        "kubernetes=llm-d,tls.mode=tls,tls.secret=x",
        "tls.mode",
    ),
    "KEDA without Prometheus": ("autoscaling.type=keda,auth.open=true", "autoscaling.prometheus"),
    "a profile left to the operator": ("kubernetes=nim-operator", "nimOperator.profile"),
    "KV events that every pod could read": (
        "kvEvents.enabled=true,networkPolicy.enabled=true",
        "kvEvents.from",
    ),
    "KV events without a policy": (
        "kvEvents.enabled=true,kvEvents.from[0].podSelector.a=b",
        "networkPolicy.enabled",
    ),
    "KV events under an operator": (
        "kubernetes=kserve,kvEvents.enabled=true",
        "only with kubernetes plain and llm-d",
    ),
    "KV events of a model without a name": (
        "kvEvents.enabled=true,networkPolicy.enabled=true,kvEvents.from[0].podSelector.a=b,"
        "weights.volume.nfs.server=x,weights.path=m",
        "NIM_SERVED_MODEL_NAME",
    ),
    "KV events on another address": (
        "environment.NIM_KV_EVENTS_ENDPOINT=x",
        "set kvEvents.enabled",
    ),
    "Dynamo's ports without a policy": ("dynamo.role=front,dynamo.etcd=x", "networkPolicy.enabled"),
    "a part of Dynamo without a role": ("dynamo.etcd=http://etcd:2379", "dynamo.role"),
    "Dynamo without discovery": (
        "dynamo.role=worker,networkPolicy.enabled=true",
        "dynamo.etcd",
    ),
    "Dynamo's TLS without a name": (
        f"{DYNAMO},dynamo.role=worker,dynamo.tlsSecret=x",
        "tlsServerName",
    ),
    "an endpoint of two parts": (f"{DYNAMO},dynamo.role=worker,dynamo.endpoint=a.b", "endpoint"),
    "Dynamo under an operator": (
        f"{DYNAMO},dynamo.role=front,kubernetes=llm-d",
        "only with kubernetes plain",
    ),
    "a front with GPUs": (f"{DYNAMO},dynamo.role=front,model=gpt-oss-20b,gpus=1", "runs no engine"),
    "a front of nothing": (f"{DYNAMO},dynamo.role=front", "names the model of its workers"),
    "two workers in a pod": (
        f"{DYNAMO},dynamo.role=worker,environment.NIM_REPLICAS=x",
        "set replicaCount",
    ),
    "a handover without a secret": (f"{DYNAMO},dynamo.role=decode", "dynamo.handoverSecret"),
    "a handover's secret without a handover": (
        f"{DYNAMO},dynamo.role=worker,dynamo.handoverSecret=x",
        "set dynamo.role to prefill or decode",
    ),
    "a handover's secret in a ConfigMap": (
        "environment.NIM_KV_HANDOVER_SECRET=x",
        "it belongs in a Secret",
    ),
    "ingress for prefill workers": (
        f"{DYNAMO},dynamo.role=prefill,dynamo.handoverSecret=x,ingress.enabled=true,ingress.host=x",
        "ingress.enabled has no effect on workers",
    ),
    "an endpoint in two places": ("environment.NIM_DYNAMO_ENDPOINT=x", "set dynamo.role"),
    **{
        f"{name} of a worker": (
            f"{DYNAMO},dynamo.role=worker,{pair}",
            f"{name} has no effect on workers",
        )
        for name, pair in {
            "auth.keysSecret": "auth.keysSecret=keys",
            "autoscaling.type": "autoscaling.type=hpa",
            "ingress.enabled": "ingress.enabled=true,ingress.host=x",
            "monitoring.serviceMonitor": "monitoring.serviceMonitor=true",
            "tls.mode": "tls.mode=tls,tls.secret=x",
        }.items()
    },
    **{
        f"{name} where {platform} makes the pod": (
            f"kubernetes={platform},nimOperator.profile={PROFILE},model=gpt-oss-20b,{pair}",
            f"{name} has no effect with kubernetes: {platform}",
        )
        for platform in ("nim-operator", "kserve")
        for name, pair in {
            "networkPolicy.enabled": "networkPolicy.enabled=true",
            "auth.keysSecret": "auth.keysSecret=keys",
            "tls.secret": "tls.secret=x",
            "weights.volume": "weights.volume.nfs.server=x,weights.path=m",
            "sidecars": "sidecars[0].name=x",
            "strategy": "strategy.type=Recreate",
            "service.nodePort": "service.nodePort=30001",
        }.items()
    },
    "a drain that the operator's grace cuts": (
        f"kubernetes=nim-operator,nimOperator.profile={PROFILE},drainSeconds=77",
        "drainSeconds has no effect",
    ),
    "an autoscaler that the operator does not make": (
        f"kubernetes=nim-operator,nimOperator.profile={PROFILE},autoscaling.type=keda,auth.open=true",
        "autoscaling.type: keda has no effect",
    ),
    "several pods of the operator on one node's claim": (
        f"kubernetes=nim-operator,nimOperator.profile={PROFILE},replicaCount=2,auth.open=true",
        "cache.accessMode: several pods",
    ),
    "mTLS where KServe calls": ("kubernetes=kserve,model=gpt-oss-20b,tls.mode=mtls", "tls.mode"),
    **{
        f"a field of extraPodSpec that the chart sets: {field}": (pair, field)
        for field, pair in {
            "use drainSeconds": "extraPodSpec.terminationGracePeriodSeconds=900",
            "it is fixed": "extraPodSpec.automountServiceAccountToken=true",
            "use podSecurityContext": "extraPodSpec.securityContext.runAsUser=0",
            "use affinity": "affinity.nodeAffinity.x=y,extraPodSpec.affinity.podAffinity.x=y",
        }.items()
    },
    **{
        f"a policy that shuts out {name}": (f"networkPolicy.enabled=true,{pair}", name)
        for name, pair in {
            "ingress.enabled": "ingress.enabled=true,ingress.host=x",
            "httpRoute.enabled": "httpRoute.enabled=true,httpRoute.parentRefs[0].name=x",
            "monitoring.serviceMonitor": "monitoring.serviceMonitor=true",
        }.items()
    },
    "a setting of the chart's by another way": ("extraEnv[0].name=NIM_AUTH", "set auth.open"),
    "a setting from two places": (
        "environment.NIM_LOG_LEVEL=DEBUG,extraEnv[0].name=NIM_LOG_LEVEL",
        "it is in extraEnv too",
    ),
    "a path where KServe has the model": (
        "kubernetes=kserve,model=gpt-oss-20b,environment.NIM_MODEL_PATH=/m",
        "environment.NIM_MODEL_PATH",
    ),
    "a scrape without a key": ("monitoring.serviceMonitor=true", "monitoring.keySecret"),
    "a request above its limit": (
        "resources.requests.cpu=4,resources.limits.cpu=2",
        "resources.requests.cpu",
    ),
    "pods that are never ready in time": ("minReadySeconds=4000", "progressDeadlineSeconds"),
    "a label's value with a blank": ("podLabels.a=b c", "podLabels"),
    "a label's value that is too long": (f"commonLabels.a={'b' * 64}", "commonLabels"),
    "a host with a port": ("ingress.enabled=true,ingress.host=x.example.com:80", "host"),
    "a host in upper case": ("httpRoute.hostnames[0]=X.example.com", "hostnames"),
    "a share that is none": ("podDisruptionBudget.maxUnavailable=half", "maxUnavailable"),
    "an Ingress without a host": ("ingress.enabled=true", "ingress.host"),
    "a route without a Gateway": ("httpRoute.enabled=true", "httpRoute.parentRefs"),
    "weights without their folder": ("weights.volume.nfs.server=x", "weights.path"),
    "a drain beside the pod's grace": ("environment.NIM_DRAIN_GRACE_S=10min", "set drainSeconds"),
    "a model in two places": ("environment.NIM_MODEL_NAME=nano", "set model"),
    "a digest that is none": ("image.digest=latest", "digest"),
    "GPUs in two places": (r"resources.limits.nvidia\.com/gpu=1", "nvidia.com"),
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
    result = helm("template", "demo", chart, "--set", IMAGE, "--set", pair)
    assert result.returncode != 0
    assert key in result.stderr


def test_sizes_are_rendered_as_they_are_where_that_is_said(
    template: Callable[..., str],
) -> None:
    pairs = "gpus=1,model=gpt-oss-120b,cache.size=20Gi,resources.limits.memory=8Gi"
    assert "sizeLimit: 20Gi" in template("--set", pairs + ",checkSizes=false")


def test_every_default_is_described_and_every_described_value_has_a_default(chart: Path) -> None:
    schema = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    foreign = set(foreign_values(chart))
    no_default = ("resources.", "strategy.")
    described = {path for path in schema_paths(schema) if not path.startswith(no_default)}
    assert set(paths(values)) == described - foreign


def foreign_values(chart: Path) -> dict[str, str]:
    """Names of other charts, and what the chart answers."""
    text = (chart / "templates" / "_checks.tpl").read_text(encoding="utf-8")
    (table,) = re.findall(r'define "harmonium.foreignValues" -}}\n(.*?){{- end', text, re.DOTALL)
    remedies: dict[str, str] = yaml.safe_load(table)
    return remedies


def test_another_charts_name_is_answered_with_ours(
    helm: Callable[..., CompletedProcess[str]], chart: Path
) -> None:
    remedies = foreign_values(chart)
    for name in ("env", "persistence", "livenessProbe"):
        result = helm("template", "demo", chart, "--set", IMAGE, "--set", f"{name}.x=y")
        assert result.returncode != 0
        assert remedies[name] in result.stderr


def test_every_remedy_names_a_value_that_exists(chart: Path) -> None:
    values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    for name, remedy in foreign_values(chart).items():
        for value in re.findall(r"^use ([a-zA-Z.]+)", remedy):
            assert value in set(paths(values)), (name, value)


def test_the_chart_can_be_a_dependency(
    helm: Callable[..., CompletedProcess[str]], chart: Path, tmp_path: Path
) -> None:
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "harmonium").symlink_to(chart)
    meta = {"apiVersion": "v2", "name": "parent", "version": "1.0.0"}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(meta), encoding="utf-8")
    pairs = (
        "global.region=eu,global.imageRegistry=mirror.example.com,harmonium.image.repository=r/h"
    )
    result = helm("template", "demo", tmp_path, "--set", pairs)
    assert result.returncode == 0, result.stderr
    assert "name: demo-harmonium" in result.stdout
    assert "image: mirror.example.com/r/h:" in result.stdout
