"""What templates were rendered to, by kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Objects = Callable[..., dict[str, Any]]


def pod_of(objects: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = objects["Deployment"]["spec"]["template"]["spec"]
    return spec


def container_of(objects: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = pod_of(objects)["containers"][0]
    return container
