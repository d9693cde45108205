"""The advisories that `make audit` accepts, as an OpenVEX document."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ACCEPTED = Path("tools/packaging/advisories.json")
Advisories = Mapping[str, Mapping[str, str]]


def vex(
    product: str, versions: Mapping[str, str], created: str, accepted: Advisories
) -> dict[str, Any]:
    """State for each accepted advisory why it does not affect the product.

    `versions`: of the distributions that are in it, by normal name; KeyError for one that is not.
    """
    statements = [
        {
            "vulnerability": {"name": advisory},
            "products": [
                {
                    "@id": product,
                    "subcomponents": [
                        {"@id": f"pkg:pypi/{why['package']}@{versions[why['package']]}"},
                    ],
                }
            ],
            "status": "not_affected",
            "justification": why["justification"],
            "impact_statement": why["reason"],
        }
        for advisory, why in sorted(accepted.items())
    ]
    content = hashlib.sha256(json.dumps([product, statements]).encode()).hexdigest()
    return {
        "@context": "https://openvex.dev/ns/v0.2.0",
        "@id": f"urn:harmonium:vex:{content[:32]}",
        "author": "The maintainers of Harmonium",
        "timestamp": created,
        "version": 1,
        "statements": statements,
    }


def of_project(product: str, versions: Mapping[str, str], created: str) -> dict[str, Any]:
    """The document of what `make audit` accepts."""
    accepted = json.loads(ACCEPTED.read_text(encoding="utf-8"))
    return vex(product, versions, created, accepted)
