"""Strict validation of rendered objects: Kubernetes' kinds and the custom resources of crds/."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

_FOLDER = Path(__file__).parent / "crds"


def _strict(node: Any) -> Any:
    """The schema with unknown fields refused, as an API server does with fieldValidation=Strict."""
    if isinstance(node, list):
        return [_strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    strict = {
        key: {name: _strict(item) for name, item in value.items()}
        if key == "properties"
        else _strict(value)
        for key, value in node.items()
    }
    is_open = node.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in node
    if "properties" in node and not is_open:
        strict["additionalProperties"] = False
    if str(node.get("pattern", "")).startswith("^(?i)"):  # Go's way to write it
        strict["pattern"] = "(?i)^" + node["pattern"].removeprefix("^(?i)")
    if node.get("x-kubernetes-int-or-string"):
        strict.pop("type", None)
        strict["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return strict


def _customs() -> dict[tuple[str, str], Any]:
    found = {}
    for path in _FOLDER.glob("*.json"):
        held = json.loads(path.read_text(encoding="utf-8"))
        schema = _strict(held["schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        found[held["apiVersion"], held["kind"]] = schema
    return found


CUSTOMS = _customs()


def check(item: dict[str, Any], version: str) -> None:
    """Raise unless the object is valid for this version of Kubernetes, without unknown fields."""
    kind = item["apiVersion"], item["kind"]
    if kind in CUSTOMS:
        jsonschema.validate(item, CUSTOMS[kind])
        for spec in _pods(item):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
            kubernetes_validate.validate(pod, version, strict=True)
        return
    kubernetes_validate.validate(item, version, strict=True)


def _pods(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if "containers" in node:
            yield node
        else:
            for value in node.values():
                yield from _pods(value)
