"""What a cluster has that the scenarios name: custom resources, classes."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.cluster.release import KUBECTL, ROOT

CRDS = ROOT / "tests" / "chart" / "crds"


def _definition(held: dict[str, Any]) -> dict[str, Any]:
    """The custom resource of a file in tests/chart/crds."""
    group, version = held["apiVersion"].split("/")
    names = {
        "kind": held["kind"],
        "plural": f"{held['kind'].lower()}s",
        "singular": held["kind"].lower(),
    }
    served = {"name": version, "served": True, "storage": True}
    annotations = {}
    if group.endswith("k8s.io"):  # a server lets nobody else make these
        annotations["api-approved.kubernetes.io"] = held["source"]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{group}", "annotations": annotations},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": names,
            "versions": [{**served, "schema": {"openAPIV3Schema": held["schema"]}}],
        },
    }


def definitions() -> list[dict[str, Any]]:
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(CRDS.glob("*.json"))]
    # Dynamo's is made by hand from Go types and is no schema of a custom resource.
    return [_definition(held) for held in files if held["kind"] != "DynamoGraphDeployment"]


def classes() -> list[dict[str, Any]]:
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    items = [
        _storage("standard", allowVolumeExpansion=True),
        _storage("fast", allowVolumeExpansion=True),
        _storage("fixed"),
        _item("scheduling.k8s.io/v1", "PriorityClass", "serving", value=1000),
        _item("node.k8s.io/v1", "RuntimeClass", "nvidia", handler="nvidia"),
    ]
    items[0]["metadata"]["annotations"] = default
    return items


def _item(version: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}


def _storage(name: str, **fields: Any) -> dict[str, Any]:
    provisioner = "example.com/none"
    return _item("storage.k8s.io/v1", "StorageClass", name, provisioner=provisioner, **fields)


def prepare() -> None:
    """Make what the server lacks; what is there stays as it is."""
    made = definitions()
    items = {"apiVersion": "v1", "kind": "List", "items": [*made, *classes()]}
    done = subprocess.run(
        [KUBECTL, "create", "--filename=-"],
        input=json.dumps(items),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    refused = [line for line in done.stderr.splitlines() if "AlreadyExists" not in line]
    assert refused == []
    names = [f"crd/{item['metadata']['name']}" for item in made]
    wait = [str(KUBECTL), "wait", "--for=condition=Established", "--timeout=60s", *names]
    subprocess.run(wait, check=True, capture_output=True, timeout=120)
