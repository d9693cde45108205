"""What a distribution needs and is installed, as JSON; standard library only.

Run in the Python that is looked at: `python inventory.py harmonium`. Each distribution's digest is
of the files that its RECORD lists and pip did not write: their names and SHA-256, each recomputed.
"""

import base64
import hashlib
import json
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

BY_INSTALLER = ("INSTALLER", "REQUESTED", "direct_url.json", "RECORD")  # not in the wheel
_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""\bextra\s*==\s*["']([^"']+)["']""")


def closure(root: str) -> dict[str, tuple[Distribution, frozenset[str]]]:
    """The distributions that another needs here, itself included, by normal name,
    and each one's extras that some requirement asks for.
    """
    found: dict[str, tuple[Distribution, frozenset[str]]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(normal(root), frozenset[str]())]
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            each = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform or Python
        found[name] = each, extras | (found[name][1] if name in found else frozenset())
        waiting += needs(each, extras)
    return found


def needs(each: Distribution, extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    """What a distribution needs with these extras, whatever the platform: names, their extras."""
    wanted = []
    for requirement in each.requires or ():
        left, _, marker = requirement.partition(";")
        of_extras = _EXTRA.findall(marker)
        if of_extras and not extras & set(of_extras):
            continue
        match = _REQUIREMENT.match(left)
        assert match is not None, requirement
        asked = frozenset(word.strip() for word in (match[2] or "").split(",") if word.strip())
        wanted.append((normal(match[1]), asked))
    return wanted


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def described(each: Distribution, extras: frozenset[str]) -> dict[str, Any]:
    """One distribution: its metadata, what it needs, its digest and its own SBOMs."""
    metadata = each.metadata
    return {
        "name": metadata["Name"],
        "version": each.version,
        "summary": metadata["Summary"] or "",
        "expression": metadata["License-Expression"],
        "licence": metadata["License"],
        "classifiers": [
            value.rpartition(":: ")[2]
            for value in metadata.get_all("Classifier") or ()
            if value.startswith("License ::")
        ],
        "needs": sorted({name for name, _ in needs(each, extras)}),
        "sha256": digest(each),
        "sboms": [
            json.loads(Path(str(path.locate())).read_text(encoding="utf-8"))
            for path in each.files or ()
            if re.search(r"\.dist-info/sboms/[^/]+\.json$", str(path))
        ],
    }


def digest(each: Distribution) -> str:
    """SHA-256 over names and hashes of its files; raises ValueError for a file that was changed."""
    rows = []
    for path in each.files or ():
        if path.name in BY_INSTALLER or path.suffix == ".pyc" or str(path).startswith("../"):
            continue
        located = Path(str(path.locate()))
        if not located.exists():
            continue  # the image is trimmed of tests and headers
        actual = hashlib.sha256(located.read_bytes()).digest()
        expected = path.hash.value if path.hash is not None else ""
        text = base64.urlsafe_b64encode(actual).rstrip(b"=").decode()
        if expected and expected != text:
            raise ValueError(f"{located} is not what {each.name} {each.version} was installed with")
        rows.append(f"{path} {actual.hex()}\n")
    return hashlib.sha256("".join(sorted(rows)).encode()).hexdigest()


if __name__ == "__main__":
    root = normal(sys.argv[1])
    there = closure(root)
    mine, _ = there.pop(root)
    listed = [described(*there[name]) for name in sorted(there)]
    print(
        json.dumps(
            {
                "needs": sorted({name for name, _ in needs(mine, frozenset())}),
                "distributions": listed,
            }
        )
    )
