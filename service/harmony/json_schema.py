"""Questions to a JSON Schema whose answers do not depend on how it is written down.

A schema is whatever a client sent: any JSON value. Nothing here raises but OverBudget.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from service.work import Budget

# These speak of one place, not of the type, so a variant does not inherit them.
_ANNOTATIONS = frozenset({"title", "description", "default", "examples", "nullable"})
_MAX_FOLDS = 64


def flatten(
    schema: Any, root: Mapping[str, Any], budget: Budget
) -> tuple[dict[str, Any], Mapping[str, None]]:
    """Fold `$ref` and `allOf` into one flat schema; also gives the references followed.

    Raises OverBudget.
    """
    flat: dict[str, Any] = {}
    refs: dict[str, None] = {}
    _fold(schema, root, flat, refs, budget, depth=0)
    return flat, refs


def _fold(
    schema: Any,
    root: Mapping[str, Any],
    flat: dict[str, Any],
    refs: dict[str, None],
    budget: Budget,
    depth: int,
) -> None:
    if not isinstance(schema, Mapping) or depth > _MAX_FOLDS:
        return
    budget.spend(1 + len(schema))
    ref, parts = schema.get("$ref"), schema.get("allOf")
    if isinstance(ref, str) and ref not in refs:
        budget.spend(len(ref))
        refs[ref] = None
        _fold(_resolve(ref, root), root, flat, refs, budget, depth + 1)
    for part in parts if isinstance(parts, list) else []:
        _fold(part, root, flat, refs, budget, depth + 1)
    _merge_into(flat, schema, budget)


def _merge_into(flat: dict[str, Any], schema: Mapping[str, Any], budget: Budget) -> None:
    """Let `schema` add to `flat`: properties and required gather, the rest is replaced.

    What gathers is a copy, made once, so that a part costs what it has and not what came before.
    """
    for key, value in schema.items():
        gathered = flat.get(key)
        if key in ("$ref", "allOf"):
            continue
        if key == "properties" and isinstance(value, Mapping):
            budget.spend(len(value))
            flat[key] = gathered if isinstance(gathered, dict) else {}
            flat[key].update(value)
        elif key == "required" and isinstance(value, list):
            budget.spend(len(value))
            flat[key] = gathered if isinstance(gathered, list) else []
            flat[key].extend(value)
        else:
            flat[key] = value


def _resolve(ref: str, root: Mapping[str, Any]) -> Any:
    """Follow a JSON pointer inside the document; None if it leads nowhere."""
    if not ref.startswith("#"):
        return None
    target: Any = root
    for step in unquote(ref[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = target.get(name)
        elif isinstance(target, list) and name.isdecimal() and int(name[:9]) < len(target):
            target = target[int(name[:9])]
        else:
            return None
    return target


def variants(schema: dict[str, Any]) -> list[Any]:
    """The schemas that `anyOf` or `oneOf` offer, each merged with the keywords beside it."""
    key = next((k for k in ("oneOf", "anyOf") if _is_filled(schema.get(k))), None)
    if key is None:
        return []
    base = {k: v for k, v in schema.items() if k not in _ANNOTATIONS and k != key}
    return [{"allOf": [base, variant]} if base else variant for variant in schema[key]]


def real_variants(schema: dict[str, Any]) -> list[Any]:
    """The variants but null; none where a const or an enum decides already."""
    if "const" in schema or _is_filled(schema.get("enum")):
        return []
    key = "oneOf" if _is_filled(schema.get("oneOf")) else "anyOf"
    offered = schema[key] if _is_filled(schema.get(key)) else []
    return [v for v in offered if not (isinstance(v, Mapping) and v.get("type") == "null")]


def type_names(schema: dict[str, Any]) -> list[Any]:
    """The names under `type`, or what the other keywords imply; unknown is [None]."""
    names = schema.get("type")
    if isinstance(names, list) and names:
        return names
    if isinstance(names, str):
        return [names]
    if isinstance(schema.get("properties"), Mapping):
        return ["object"]
    if schema.get("items") is not None or isinstance(schema.get("prefixItems"), list):
        return ["array"]
    return [None]


def _is_filled(value: Any) -> bool:
    return isinstance(value, list) and bool(value)
