"""The software bill of materials as CycloneDX 1.6, of what inventory.py found."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tools.supply.licences import READ, UnknownLicence, licence_of, spdx

HASH_OF = "harmonium:hash-of"
_FILES = "names and SHA-256 of the files in RECORD, sorted"
_NAMESPACE = uuid.UUID("6f2b5b7e-5f3c-5d0e-9a55-0d9c3b2f7a10")


def sbom(
    artefact: Mapping[str, str],
    inventory: Mapping[str, Any],
    created: str,
    debian: Sequence[str] = (),
) -> dict[str, Any]:
    """Describe an artefact (purl, version, sha256) and what is in it; raises UnknownLicence.

    `debian`: lines of `dpkg-query --show`, for an image.

    The same input gives the same document.
    """
    found = inventory["distributions"]
    components = [component(each) for each in found] + [package(line) for line in debian]
    here = {each["name"].lower(): purl_of(each) for each in found}
    refs = {normal(name): ref for name, ref in here.items()}
    root = artefact["purl"]
    serial = uuid.uuid5(_NAMESPACE, f"{artefact['sha256']} {sorted(refs.values())}")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": created,
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": "harmonium",
                "version": artefact["version"],
                "purl": root,
                "licenses": [{"expression": "Apache-2.0"}],
                "hashes": [{"alg": "SHA-256", "content": artefact["sha256"]}],
            },
        },
        "components": components,
        "dependencies": [
            {"ref": root, "dependsOn": sorted(refs[n] for n in inventory["needs"] if n in refs)},
            *(
                {
                    "ref": purl_of(each),
                    "dependsOn": sorted(refs[name] for name in each["needs"] if name in refs),
                }
                for each in found
            ),
        ],
    }


def component(each: Mapping[str, Any]) -> dict[str, Any]:
    """One distribution, with what is compiled into it by its own account."""
    ref = purl_of(each)
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": ref,
        "name": each["name"],
        "version": each["version"],
        "purl": ref,
        "licenses": [{"expression": licence_of(each)}],
        "hashes": [{"alg": "SHA-256", "content": each["sha256"]}],
        "properties": [{"name": HASH_OF, "value": _FILES}],
    }
    if inner := [part for own in each["sboms"] for part in _inner(own, ref)]:
        made["components"] = inner
    return made


def package(line: str) -> dict[str, Any]:
    """One package of Debian's, whose licences are in a file of its own."""
    name, version = line.split()
    ref = f"pkg:deb/debian/{name.partition(':')[0]}@{version}"
    return {
        "type": "library",
        "bom-ref": f"{ref}#{name}",
        "name": name,
        "version": version,
        "purl": ref,
        "licenses": [{"license": {"name": f"/usr/share/doc/{name.partition(':')[0]}/copyright"}}],
    }


def _inner(own: Mapping[str, Any], ref: str) -> Iterator[dict[str, Any]]:
    for part in own.get("components", ()):
        said = [READ.get(part["name"], "")]
        said += [choice.get("expression", "") for choice in part.get("licenses", ())]
        said += [
            choice["license"].get("id") or choice["license"].get("name", "")
            for choice in part.get("licenses", ())
            if "license" in choice
        ]
        expressions = [expression for text in said if (expression := spdx(text))]
        if not expressions:
            name = f"{part['name']} {part.get('version', '')}"
            raise UnknownLicence(f"{name}, which {ref} contains, has no licence that SPDX knows")
        kept = {key: part[key] for key in ("name", "version", "purl", "hashes") if key in part}
        yield {
            "type": "library",
            "bom-ref": f"{ref}#{part.get('bom-ref', part['name'])}",
            **kept,
            "licenses": [{"expression": expressions[0]}],
        }


def purl_of(each: Mapping[str, Any]) -> str:
    """The package URL of a distribution, which is its reference too."""
    return f"pkg:pypi/{normal(each['name'])}@{each['version']}"


def normal(name: str) -> str:
    """The name as package URLs have it."""
    return name.lower().replace("_", "-").replace(".", "-")
