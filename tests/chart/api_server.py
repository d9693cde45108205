"""A stand-in for an API server, for Helm's `lookup`: a few kinds, and the given objects."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import yaml

from tests import loopback

# By group and version: kind, and whether it is in a namespace.
KINDS: dict[str, dict[str, bool]] = {
    "v1": {
        **dict.fromkeys(("ConfigMap", "PersistentVolumeClaim", "Pod"), True),
        **dict.fromkeys(("Secret", "Service", "ServiceAccount"), True),
    },
    "apps/v1": {"Deployment": True, "StatefulSet": True},
    "autoscaling/v2": {"HorizontalPodAutoscaler": True},
    "storage.k8s.io/v1": {"StorageClass": False},
    "batch/v1": {"Job": True},
    "apps.nvidia.com/v1alpha1": {"NIMCache": True, "NIMService": True},
}


def _plural(kind: str) -> str:
    return kind.lower() + ("es" if kind.endswith("s") else "s")


def _base(version: str) -> str:
    return f"/api/{version}" if version == "v1" else f"/apis/{version}"


def _answers(objects: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What each path is answered with."""
    groups = []
    answers: dict[str, Any] = {
        "/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.2"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
    }
    for version, kinds in KINDS.items():
        resources = [
            {"name": _plural(kind), "kind": kind, "namespaced": is_in, "verbs": ["get", "list"]}
            for kind, is_in in kinds.items()
        ]
        answers[_base(version)] = {
            "kind": "APIResourceList",
            "groupVersion": version,
            "resources": resources,
        }
        if group := version.rpartition("/")[0]:
            each = {"groupVersion": version, "version": version.rpartition("/")[2]}
            groups.append({"name": group, "versions": [each], "preferredVersion": each})
        for kind, is_in in kinds.items():
            folder = f"{_base(version)}{'/namespaces/default' if is_in else ''}/{_plural(kind)}"
            own = [o for o in objects if (o["apiVersion"], o["kind"]) == (version, kind)]
            answers[folder] = {"apiVersion": version, "kind": f"{kind}List", "items": own}
            answers |= {f"{folder}/{o['metadata']['name']}": o for o in own}
    answers["/apis"] = {"kind": "APIGroupList", "groups": groups}
    return answers


@contextmanager
def api_server(objects: Sequence[dict[str, Any]], folder: Path) -> Iterator[Path]:
    """Serve the objects; gives the path of a kubeconfig."""
    answers = _answers(objects)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            body = json.dumps(
                found or {"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}
            ).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = loopback.HttpServer((loopback.ADDRESS, 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        path = folder / "kubeconfig"
        cluster = {
            "name": "c",
            "cluster": {"server": f"http://{loopback.IN_URL}:{server.server_port}"},
        }
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        config = {
            "clusters": [cluster],
            "users": [{"name": "u", "user": {}}],
            "contexts": [context],
        }
        path.write_text(yaml.safe_dump({**config, "current-context": "x"}), encoding="utf-8")
        yield path
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
