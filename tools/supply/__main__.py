"""`python -m tools.supply sbom | predicates | attest | verify`: what is shipped, how, and by whom.

    sbom    DIST/*.cdx.json for each artefact: hashes, licences, what wheels say of themselves
    predicates  provenance and VEX of each artefact, unsigned
    attest  the same, and signature, SBOM, provenance and VEX of each artefact as cosign's bundles
    verify  check all of them; exit code 1 for anything that was changed

Artefacts are the wheel, the chart and the image's archive, as far as they are in the folder.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.supply.licences import UnknownLicence
from tools.supply.provenance import git, provenance, sha256
from tools.supply.sbom import normal, sbom
from tools.supply.signing import Cosign, Unverified, new_keys
from tools.supply.vex import of_project

PATTERNS = ("harmonium-*.whl", "harmonium-*.tgz", "harmonium-*.tar")
KINDS = {".whl": "pypi", ".tgz": "helm", ".tar": "oci"}  # of package URLs
INVENTORY = Path(__file__).with_name("inventory.py")


def artefacts(folder: Path) -> Iterator[Path]:
    """What there is to sign."""
    for pattern in PATTERNS:
        yield from sorted(folder.glob(pattern))


def inventory(command: list[str]) -> dict[str, Any]:
    """What is installed in the Python that the command starts."""
    done = subprocess.run(
        [*command, "-", "harmonium"],
        input=INVENTORY.read_text(encoding="utf-8"),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def make_sboms(folder: Path, python: list[str], debian: list[str], digest: str | None) -> None:
    """Write an SBOM for each artefact; the chart holds no software of others."""
    installed = inventory(python)
    for path in artefacts(folder):
        kind = KINDS[path.suffix]
        version = version_of(path)
        subject = {
            "purl": f"pkg:{kind}/harmonium@{version}",
            "version": version,
            "sha256": digest or sha256(path),
        }
        found = {"needs": [], "distributions": []} if kind == "helm" else installed
        packages = debian if kind == "oci" else []
        document = sbom(subject, found, commit_time(), packages)
        write(sidecar(path, "cdx"), document)
        inner = sum(len(each.get("components", ())) for each in document["components"])
        print(f"{path.name}: {len(document['components'])} components, {inner} inside them")


def make_predicates(folder: Path, started: str) -> None:
    """Write provenance and VEX for each artefact."""
    for path in artefacts(folder):
        bill = json.loads(sidecar(path, "cdx").read_text(encoding="utf-8"))
        versions = {normal(each["name"]): each["version"] for each in bill["components"]}
        product = bill["metadata"]["component"]["purl"]
        if "vex" in predicates(path):
            write(sidecar(path, "vex"), of_project(product, versions, commit_time()))
        write(sidecar(path, "slsa"), provenance(started, now()))


def make_attestations(folder: Path, cosign: Cosign) -> None:
    """Sign every artefact and what is said of it."""
    for path in artefacts(folder):
        cosign.sign(path)
        for kind, predicate in predicates(path).items():
            cosign.attest(path, kind, predicate)
        print(f"{path.name}: signed, with {', '.join(predicates(path))}")


def verify(folder: Path, cosign: Cosign) -> int:
    """Check every artefact; the number of those that failed, 1 where there is none."""
    failed, paths = 0, list(artefacts(folder))
    for path in paths:
        try:
            checked = cosign.verify(path, predicates(path))
        except Unverified as error:
            failed += 1
            print(f"{path.name}: NOT VERIFIED: {error}", file=sys.stderr)
        else:
            print(f"{path.name}: verified ({', '.join(checked)})")
    if not paths:
        print(f"{folder} has nothing to verify", file=sys.stderr)
    return failed if paths else 1


def predicates(path: Path) -> dict[str, Path]:
    """What is attested of an artefact, by its kind; advisories concern what has dependencies."""
    known = {"sbom": sidecar(path, "cdx"), "provenance": sidecar(path, "slsa")}
    return known if KINDS[path.suffix] == "helm" else {**known, "vex": sidecar(path, "vex")}


def sidecar(path: Path, kind: str) -> Path:
    return path.with_name(f"{path.name}.{kind}.json")


def write(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def version_of(path: Path) -> str:
    return path.name.split("-")[1].removesuffix(".tgz").removesuffix(".tar")


def commit_time() -> str:
    """When the source was committed: the same source gives the same documents."""
    return utc(datetime.fromisoformat(git("log", "-1", "--format=%cI")))


def now() -> str:
    return utc(datetime.now(UTC))


def utc(time: datetime) -> str:
    """The time as cosign writes it."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["sbom", "predicates", "attest", "verify"])
    parser.add_argument("--folder", type=Path, default=Path("build/release"))
    parser.add_argument("--python", default=sys.executable, help="the command whose packages")
    parser.add_argument("--digest", help="the image's, which is not the one of a file here")
    parser.add_argument("--keyless", action="store_true", help="by the identity of a CI run")
    parser.add_argument("--debian", type=Path, help="the image's packages, by dpkg-query --show")
    parser.add_argument("--cosign", default="cosign", help="the program")
    parser.add_argument("--key", type=Path, help="the private key; made anew in the folder without")
    parser.add_argument("--public-key", type=Path, help="the one to verify with")
    arguments = parser.parse_args()
    folder, started = arguments.folder, now()
    if arguments.command == "sbom":
        try:
            debian = arguments.debian.read_text().splitlines() if arguments.debian else []
            make_sboms(folder, shlex.split(arguments.python), debian, arguments.digest)
        except UnknownLicence as error:
            print(f"sbom: {error}", file=sys.stderr)
            return 1
        return 0
    public = arguments.public_key or folder / "cosign.pub"
    if arguments.command == "verify":
        return min(verify(folder, Cosign(arguments.cosign, public)), 1)
    make_predicates(folder, started)
    if arguments.command == "predicates":
        return 0
    if arguments.keyless:
        cosign = Cosign(arguments.cosign, public)
    elif arguments.key is None:
        print("No --key was given: a pair of keys is made for this run, which vouches for nobody.")
        (folder / "cosign.key").unlink(missing_ok=True)
        (folder / "cosign.pub").unlink(missing_ok=True)
        cosign = new_keys(arguments.cosign, folder)
    else:
        cosign = Cosign(arguments.cosign, public, arguments.key)
    make_attestations(folder, cosign)
    return 0


if __name__ == "__main__":
    sys.exit(main())
