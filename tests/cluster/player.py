"""A node whose pods are processes of this machine: what a scheduler and a kubelet do with them.

The API server and its controllers are real: they decide which pods there are, and which are in a
Service. As in tests/chart/kubelet.py, each pod has a port and a cache folder of its own. Of the
images all are there but those of one tag. Volumes are not mounted.
"""

from __future__ import annotations

import asyncio
import base64
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2

from tests.chart.kubelet import Pod, PodSpec, free_port
from tests.cluster.release import KUBECTL

SCHEDULER = "player"  # of pods that this node takes
LACKING_TAG = "no-such-tag"
PROGRAM = Path(sys.executable).with_name("harmonium")
LOOK_S, BEAT_S, BACK_OFF_S = 0.2, 10.0, 2.0
MERGE = {"content-type": "application/merge-patch+json"}


class Api:
    """The API server of KUBECONFIG, as `kubectl proxy` gives it."""

    def __init__(self, url: str) -> None:
        self._client = httpx2.AsyncClient(base_url=url, timeout=60)

    async def get(self, path: str) -> dict[str, Any]:
        return self._read(await self._client.get(path))

    async def post(self, path: str, item: dict[str, Any]) -> dict[str, Any]:
        return self._read(await self._client.post(path, json=item))

    async def patch(self, path: str, item: dict[str, Any]) -> None:
        answer = await self._client.patch(path, json=item, headers=MERGE)
        if answer.status_code != 404:  # it may be gone by now
            self._read(answer)

    async def delete(self, path: str) -> None:
        options = {"gracePeriodSeconds": 0}
        answer = await self._client.request("DELETE", path, json=options)
        if answer.status_code != 404:
            self._read(answer)

    async def evict(self, namespace: str, name: str) -> int:
        """The status: 429 while a disruption budget forbids it."""
        item = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        return (await self._client.post(path, json=item)).status_code

    async def close(self) -> None:
        await self._client.aclose()

    @staticmethod
    def _read(answer: httpx2.Response) -> dict[str, Any]:
        assert answer.status_code < 300, answer.text
        read: dict[str, Any] = answer.json()
        return read


@asynccontextmanager
async def api_of_kubeconfig() -> AsyncIterator[Api]:
    proxy = await asyncio.create_subprocess_exec(
        KUBECTL, "proxy", "--port=0", "--reject-paths=^$", stdout=asyncio.subprocess.PIPE
    )
    assert proxy.stdout is not None
    found = re.search(r"127\.0\.0\.1:\d+", (await proxy.stdout.readline()).decode())
    assert found
    api = Api(f"http://{found[0]}")
    try:
        yield api
    finally:
        await api.close()
        proxy.terminate()
        await proxy.wait()


@dataclass
class Played:
    """A pod of the API server and its process."""

    name: str
    process: Pod
    address: str
    has_image: bool
    told: tuple[bool, int] | None = None
    ending: asyncio.Task[None] | None = None
    code: int | None = None
    again_at: float | None = None

    @property
    def fails(self) -> bool:
        return not self.has_image or self.process.restarts > 0


@dataclass
class Node:
    """Plays the pods of one namespace."""

    api: Api
    namespace: str
    folder: Path
    played: dict[str, Played] = field(default_factory=dict)  # by uid; those that ended, too
    in_service: list[str] = field(default_factory=list)  # addresses

    @property
    def name(self) -> str:
        return f"node-of-{self.namespace}"

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def ready_ports(self) -> list[int]:
        """Of the pods that the Service's EndpointSlices name as ready."""
        ports = {each.address: each.process.port for each in self.played.values()}
        return [ports[address] for address in self.in_service]

    async def run(self, service: str) -> None:
        await self.api.post("/api/v1/nodes", {"metadata": {"name": self.name}, **_healthy()})
        beating = asyncio.create_task(self._beat())
        try:
            while True:
                await self._look(service)
                await asyncio.sleep(LOOK_S)
        finally:
            beating.cancel()
            for each in self.played.values():
                if each.ending:
                    each.ending.cancel()
                await each.process.kill()
            await self.api.delete(f"/api/v1/nodes/{self.name}")

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            await self.api.patch(f"/api/v1/nodes/{self.name}/status", _healthy())

    async def _look(self, service: str) -> None:
        for pod in (await self.api.get(self._pods))["items"]:
            await self._care_for(pod)
        selected = f"labelSelector=kubernetes.io%2Fservice-name%3D{service}"
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices?{selected}"
        self.in_service = [
            endpoint["addresses"][0]
            for slice_ in (await self.api.get(path))["items"]
            for endpoint in slice_["endpoints"] or ()
            if endpoint["conditions"].get("ready")
        ]

    async def _care_for(self, pod: dict[str, Any]) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        if spec["schedulerName"] != SCHEDULER:
            return
        each = self.played.get(metadata["uid"])
        if "nodeName" not in spec:
            target = {"apiVersion": "v1", "kind": "Node", "name": self.name}
            binding = {"metadata": {"name": metadata["name"]}, "target": target}
            with suppress(AssertionError):  # it may be gone by now
                await self.api.post(f"{self._pods}/{metadata['name']}/binding", binding)
        elif each is None:
            await self._start(pod)
        elif "deletionTimestamp" in metadata and each.ending is None:
            each.process.spec.grace_s = metadata["deletionGracePeriodSeconds"]
            each.ending = asyncio.create_task(self._end(each))
        elif each.ending is None:
            await self._tell(each)
        elif each.ending.done():
            each.ending.result()  # raises what failed

    async def _start(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        number = len(self.played) + 1
        folder = self.folder / metadata["name"] / metadata["uid"]
        folder.mkdir(parents=True)
        container = pod["spec"]["containers"][0]
        environment = await self._environment(container)
        process = Pod(PodSpec.of_pod(pod["spec"], environment), free_port(), folder)
        address = f"10.250.{number // 250}.{number % 250 + 1}"
        has_image = not container["image"].endswith(f":{LACKING_TAG}")
        self.played[metadata["uid"]] = Played(metadata["name"], process, address, has_image)
        if has_image:
            await process.start(PROGRAM)

    async def _environment(self, container: dict[str, Any]) -> dict[str, str]:
        """As a kubelet reads it: from ConfigMaps and Secrets, then the container's own."""
        place, read = f"/api/v1/namespaces/{self.namespace}", dict[str, str]()
        for source in container.get("envFrom", ()):
            if config := source.get("configMapRef"):
                item = await self.api.get(f"{place}/configmaps/{config['name']}")
                read |= item.get("data", {})
            elif secret := source.get("secretRef"):
                read |= await self._secret(secret["name"])
        for item in container["env"]:
            if key := item.get("valueFrom", {}).get("secretKeyRef"):
                read[item["name"]] = (await self._secret(key["name"]))[key["key"]]
            else:
                read[item["name"]] = item.get("value", "")
        return read

    async def _secret(self, name: str) -> dict[str, str]:
        item = await self.api.get(f"/api/v1/namespaces/{self.namespace}/secrets/{name}")
        return {key: base64.b64decode(text).decode() for key, text in item["data"].items()}

    async def _end(self, each: Played) -> None:
        each.code = await each.process.delete() if each.has_image else 0
        await self.api.delete(f"{self._pods}/{each.name}")

    async def _tell(self, each: Played) -> None:
        """Report the pod's state; a process that ended, or was not ready in time, starts again."""
        is_over = each.process.has_ended or each.process.never_started
        if is_over and each.again_at is None:
            await each.process.kill()
            each.process.is_ready = False
            each.process.restarts += 1
            each.again_at = time.monotonic() + BACK_OFF_S
        elif each.again_at is not None and time.monotonic() > each.again_at:
            each.again_at = None
            await each.process.start(PROGRAM)
        state = (each.process.is_ready, each.process.restarts)
        if state != each.told:
            await self.api.patch(f"{self._pods}/{each.name}/status", _status(each, *state))
            each.told = state


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _healthy() -> dict[str, Any]:
    has = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    state = {"type": "Ready", "status": "True", "lastHeartbeatTime": _now(), "reason": "Played"}
    return {"status": {"capacity": has, "allocatable": has, "conditions": [state]}}


def _status(each: Played, is_ready: bool, restarts: int) -> dict[str, Any]:
    now = _now()
    running, waiting = {"running": {"startedAt": now}}, {"waiting": {"reason": "ErrImagePull"}}
    conditions = [
        {"type": kind, "status": str(is_true), "lastTransitionTime": now}
        for kind, is_true in (
            ("PodScheduled", True),
            ("Initialized", True),
            ("ContainersReady", is_ready),
            ("Ready", is_ready),
        )
    ]
    container = {
        "name": "harmonium",
        "image": "",
        "imageID": "",
        "ready": is_ready,
        "started": is_ready,
        "restartCount": restarts,
        "state": running if each.has_image else waiting,
    }
    return {
        "status": {
            "phase": "Running" if each.has_image else "Pending",
            "startTime": now,
            "podIP": each.address,
            "podIPs": [{"ip": each.address}],
            "conditions": conditions,
            "containerStatuses": [container],
        }
    }


@asynccontextmanager
async def playing(api: Api, namespace: str, service: str, folder: Path) -> AsyncIterator[Node]:
    """A node for the namespace's pods, and the addresses that its Service has."""
    node = Node(api, namespace, folder)
    running = asyncio.create_task(node.run(service))
    try:
        yield node
        if running.done():
            running.result()
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
