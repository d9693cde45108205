"""The commands of rendered pods, with the environment and the memory that they will have."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests import loopback

PROGRAM = ["harmonium"]  # the image's ENTRYPOINT
DEFAULT = ["serve"]  # and its CMD
# What Secrets and the cluster give.
GIVEN = {
    "POD_IP": loopback.ADDRESS,
    "NIM_REDIS_URL": f"redis://{loopback.IN_URL}:1/0",
    "NIM_KV_HANDOVER_SECRET": "nXk2vQ8rT5yB1mZc7wLh4pDf9sGj3aEu",
    "NIM_API_KEYS": "k" * 32,
    "HARMONIUM_KEY": "k" * 32,
}
UNITS = {"Mi": 2**20, "Gi": 2**30}


@dataclass(frozen=True)
class Command:
    """One command of a container of the chart's own."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    memory: int | None  # the container's limit, in bytes

    def limit(self) -> None:
        """Hold this process to the limit, as far as a process can be: its own memory."""
        assert self.memory is not None
        resource.setrlimit(resource.RLIMIT_DATA, (self.memory, self.memory))


def commands_of(objects: list[dict[str, Any]]) -> Iterator[Command]:
    """Every command that a kubelet would run, also of probes and hooks."""
    maps = {o["metadata"]["name"]: o.get("data") or {} for o in objects if o["kind"] == "ConfigMap"}
    for container in _containers(objects):
        if "/harmonium" not in container["image"]:
            continue  # a sidecar of the user's
        environment = _environment(container, maps)
        memory = _bytes(container.get("resources", {}).get("limits", {}).get("memory"))
        words = [*container.get("command", PROGRAM), *container.get("args", ())]
        if "command" not in container and "args" not in container:
            words += DEFAULT
        executed = [container.get(f"{kind}Probe") for kind in ("startup", "liveness", "readiness")]
        executed += container.get("lifecycle", {}).values()
        hooks = [hook["exec"]["command"] for hook in executed if hook and "exec" in hook]
        yield Command(tuple(words), environment, memory)
        for hook in hooks:
            yield Command(tuple(hook), {}, memory)


def _containers(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, list):
        for item in node:
            yield from _containers(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in ("containers", "initContainers"):
                yield from value
            else:
                yield from _containers(value)


def _environment(container: dict[str, Any], maps: Mapping[str, dict[str, str]]) -> dict[str, str]:
    environment: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        environment |= maps.get(source.get("configMapRef", {}).get("name"), {})
    for item in container.get("env", ()):
        value = item["value"] if "value" in item else GIVEN.get(item["name"], "x")
        for name, known in environment.items():
            value = value.replace(f"$({name})", known)
        environment[item["name"]] = value
    return environment


def _bytes(quantity: str | None) -> int | None:
    return None if quantity is None else int(quantity[:-2]) * UNITS[quantity[-2:]]
