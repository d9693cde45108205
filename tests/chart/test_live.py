"""What the cluster has already decides with: what cannot be changed is kept, or refused aloud."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.chart.api_server import api_server
from tests.chart.conftest import IMAGE

pytestmark = pytest.mark.chart

Helm = Callable[..., CompletedProcess[str]]

OWN = "cache.type=persistentVolumeClaim,gpus=1"
POD = "cache.type=perPod,gpus=1"
OPERATOR = f"kubernetes=nim-operator,model=gpt-oss-20b,nimOperator.profile={'0' * 64}"
LABELS = {"app.kubernetes.io/name": "harmonium", "app.kubernetes.io/instance": "demo"}


def named(kind: str, name: str, version: str = "v1", **fields: Any) -> dict[str, Any]:
    """An object of the release `demo`."""
    release = {"meta.helm.sh/release-name": "demo", "meta.helm.sh/release-namespace": "default"}
    managed = {"app.kubernetes.io/managed-by": "Helm"}
    owned = {"labels": managed, "annotations": release}
    metadata = {"name": name, "namespace": "default", **owned}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}


def storage(size: str) -> dict[str, Any]:
    return {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}


def claim(size: str, phase: str = "Bound") -> dict[str, Any]:
    spec = {**storage(size), "storageClassName": "fast"}
    status = {"phase": phase}
    return named("PersistentVolumeClaim", "demo-harmonium-cache", spec=spec, status=status)


def made_by_helm(item: dict[str, Any]) -> dict[str, Any]:
    """With the class that Helm was given among what it owns."""
    fields: dict[str, Any] = {"f:spec": {"f:storageClassName": {}}}
    item["metadata"]["managedFields"] = [{"manager": "helm", "fieldsV1": fields}]
    return item


def workload(kind: str, model: str, **more: Any) -> dict[str, Any]:
    container = {"name": "harmonium", "env": [{"name": "NIM_MODEL_NAME", "value": model}]}
    template = {"spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": LABELS}, "template": template, **more}
    return named(kind, "demo-harmonium", "apps/v1", spec=spec)


def pods(size: str) -> dict[str, Any]:
    return workload("StatefulSet", "gpt-oss-20b", volumeClaimTemplates=[{"spec": storage(size)}])


def storage_class(*, grows: bool) -> dict[str, Any]:
    item = named("StorageClass", "fast", "storage.k8s.io/v1", allowVolumeExpansion=grows)
    del item["metadata"]["namespace"]
    return item


def puller(image: str) -> dict[str, Any]:
    spec = {"source": {"ngc": {"modelPuller": image}}}
    return named("NIMCache", "demo-harmonium", "apps.nvidia.com/v1alpha1", spec=spec)


def counted(kind: str, *managers: tuple[str, str, bool]) -> dict[str, Any]:
    """Three pods, and who says so: a manager, its way, whether the number is its."""
    item = workload(kind, "nano", replicas=3)
    item["metadata"]["managedFields"] = [
        {
            "manager": manager,
            "operation": way,
            "fieldsV1": {"f:spec": {"f:replicas": {}} if has_number else {}},
        }
        for manager, way, has_number in managers
    ]
    return item


AUTOSCALER = ("kube-controller-manager", "Update", True)
SCALED = "autoscaling.type=hpa,auth.open=true"
SMALL = [claim("40Gi"), workload("Deployment", "gpt-oss-20b")]
# Of each case: what is there, the values, and what the refusal says.
REFUSED: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "a larger model in a small claim": (
        SMALL,
        f"{OWN},model=gpt-oss-120b",
        "gpt-oss-120b needs 160Gi. Grow the claim in an upgrade of its own, with the model as it "
        "is: --set cache.size=160Gi",
    ),
    "a larger model while its claim grows": (
        SMALL,
        f"{OWN},model=gpt-oss-120b,cache.size=160Gi",
        "Grow the claim in an upgrade of its own",
    ),
    "growth of a class that cannot": (
        [*SMALL, storage_class(grows=False)],
        f"{OWN},model=gpt-oss-20b,cache.size=160Gi",
        "storage class fast cannot grow; make a claim of 160Gi yourself",
    ),
    "growth before there is a volume": (
        [claim("40Gi", "Pending"), storage_class(grows=True)],
        f"{OWN},model=gpt-oss-20b,cache.size=160Gi",
        "kubectl --namespace default delete pvc demo-harmonium-cache",
    ),
    "another class": (
        SMALL,
        f"{OWN},model=gpt-oss-20b,cache.storageClassName=slow",
        'cache.storageClassName: it is "fast", and the claim demo-harmonium-cache cannot be',
    ),
    "no class where one was set": (
        [made_by_helm(claim("40Gi"))],
        f"{OWN},model=gpt-oss-20b",
        "it was set to fast, and a claim cannot lose it",
    ),
    "another mode": (
        SMALL,
        f"{OWN},model=gpt-oss-20b,cache.accessMode=ReadWriteMany",
        "cache.accessMode: it is ReadWriteOnce",
    ),
    "another size of each pod's claim": (
        [pods("40Gi")],
        f"{POD},model=gpt-oss-20b,cache.size=80Gi",
        "kubectl --namespace default delete statefulset demo-harmonium --cascade=orphan",
    ),
    "a larger model in each pod's claim": (
        [pods("40Gi")],
        f"{POD},model=gpt-oss-120b",
        "patch pvc cache-demo-harmonium-0 --patch "
        '\'{"spec": {"resources": {"requests": {"storage": "160Gi"}}}}\'',
    ),
    "another class of each pod's claim": (
        [pods("40Gi")],
        f"{POD},model=gpt-oss-20b,cache.storageClassName=slow",
        "delete statefulset demo-harmonium --cascade=orphan",
    ),
    "another mode of each pod's claim": (
        [pods("40Gi")],
        f"{POD},model=gpt-oss-20b,cache.accessMode=ReadWriteMany",
        "delete statefulset demo-harmonium --cascade=orphan",
    ),
    "another label that selects the pods": (
        [workload("Deployment", "nano")],
        "nameOverride=assistant,fullnameOverride=demo-harmonium",
        "delete deployment demo-harmonium",
    ),
    "a port that the old Service holds": (
        [named("Service", "demo-harmonium", spec={"ports": [{"nodePort": 30080}]})],
        "nameOverride=assistant,service.type=NodePort,service.nodePort=30080",
        "delete service demo-harmonium",
    ),
    "another image that downloads": (
        [puller("old:1")],
        f"{OPERATOR},nimOperator.modelPuller=new:2",
        "delete nimcache demo-harmonium",
    ),
}
# Of each case: what is there, the values, and a text of the rendering.
RENDERED: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "a smaller model keeps the larger claim": (
        [claim("160Gi"), workload("Deployment", "gpt-oss-120b")],
        f"{OWN},model=gpt-oss-20b",
        "storage: 160Gi",
    ),
    "a claim never shrinks": ([claim("160Gi")], f"{OWN},model=nano,cache.size=20Gi", ": 160Gi"),
    "a claim grows by itself": (
        [*SMALL, storage_class(grows=True)],
        f"{OWN},model=gpt-oss-20b,cache.size=160Gi",
        "storage: 160Gi",
    ),
    "a larger model in a claim that grew": (
        [claim("160Gi"), workload("Deployment", "gpt-oss-20b")],
        f"{OWN},model=gpt-oss-120b,cache.size=160Gi",
        "storage: 160Gi",
    ),
    "a claim that suffices stays, though the default is larger": (
        [claim("130Gi"), workload("Deployment", "gpt-oss-20b")],
        f"{OWN},model=gpt-oss-120b",
        "storage: 130Gi",
    ),
    "each pod's claims that suffice stay": (
        [pods("160Gi")],
        f"{POD},model=gpt-oss-20b",
        "storage: 160Gi",
    ),
    "a port that the Service has": (
        [named("Service", "demo-harmonium", spec={"ports": [{"nodePort": 30080}]})],
        "service.type=NodePort,service.nodePort=30080",
        "nodePort: 30080",
    ),
    "the pods that an autoscaler finds": (
        [counted("Deployment", ("helm", "Apply", True))],
        SCALED,
        "\n  replicas: 3\n",
    ),
    "the pods of an autoscaler, compared with a manifest": (
        [counted("Deployment", ("helm", "Update", False), AUTOSCALER)],
        SCALED,
        "\n  replicas: 3\n",
    ),
    "the pods of an autoscaler in another kind": (
        [counted("Deployment", ("helm", "Apply", False), AUTOSCALER)],
        f"{SCALED},cache.type=perPod",
        "\n  replicas: 3\n",
    ),
    "an image that downloads stays": ([puller("old:1")], OPERATOR, "modelPuller: old:1"),
    "an image that downloads by name": (
        [],
        f"{OPERATOR},nimOperator.modelPuller=new:2",
        "modelPuller: new:2",
    ),
}


def rendered(
    helm: Helm, chart: Path, folder: Path, there: list[dict[str, Any]], values: str
) -> CompletedProcess[str]:
    with api_server(there, folder) as kubeconfig:
        return helm(
            "template",
            "demo",
            chart,
            "--dry-run=server",
            f"--kubeconfig={kubeconfig}",
            "--disable-openapi-validation",
            "--set",
            f"{IMAGE},{values}",
        )


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_server_would_not_change_is_refused_with_the_remedy(
    helm: Helm, chart: Path, tmp_path: Path, case: str
) -> None:
    there, values, told = REFUSED[case]
    result = rendered(helm, chart, tmp_path, there, values)
    assert result.returncode != 0
    assert told in result.stderr
    fresh = rendered(helm, chart, tmp_path, [], values)
    assert fresh.returncode == 0, fresh.stderr


@pytest.mark.parametrize("case", RENDERED)
def test_what_is_there_is_kept_where_it_serves(
    helm: Helm, chart: Path, tmp_path: Path, case: str
) -> None:
    there, values, told = RENDERED[case]
    result = rendered(helm, chart, tmp_path, there, values)
    assert result.returncode == 0, result.stderr
    assert told.replace('"', "") in result.stdout.replace('"', "")


def test_a_number_of_pods_that_is_the_autoscalers_is_left_to_it(
    helm: Helm, chart: Path, tmp_path: Path
) -> None:
    there = [counted("Deployment", ("helm", "Apply", False), AUTOSCALER)]
    result = rendered(helm, chart, tmp_path, there, SCALED)
    assert result.returncode == 0, result.stderr
    assert "replicas: 3" not in result.stdout
