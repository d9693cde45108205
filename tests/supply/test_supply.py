"""What is shipped is listed, signed, and refused when it was changed."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from tools.supply import inventory as inventory_program
from tools.supply.licences import UnknownLicence, licence_of
from tools.supply.sbom import sbom
from tools.supply.vex import vex

ROOT = Path(__file__).parents[2]
COSIGN = os.environ.get("COSIGN", "cosign")
CREATED = "2026-01-02T03:04:05+00:00"
ARTEFACT = {"purl": "pkg:pypi/harmonium@1", "version": "1", "sha256": "0" * 64}


pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def installed() -> dict[str, Any]:
    """What this environment has of what Harmonium needs."""
    program = ROOT / "tools" / "supply" / "inventory.py"
    done = subprocess.run(
        [sys.executable, str(program), "harmonium"], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_component_has_a_licence_and_a_hash(installed: dict[str, Any]) -> None:
    document = sbom(ARTEFACT, installed, CREATED)
    names = {each["name"].lower() for each in document["components"]}
    assert {"fastapi", "cryptography", "oss-harmony"} <= names
    for each in document["components"]:
        assert each["licenses"][0]["expression"], each["name"]
        assert len(each["hashes"][0]["content"]) == 64, each["name"]
        for inner in each.get("components", ()):
            assert inner["licenses"][0]["expression"], inner["name"]


def test_what_wheels_list_of_themselves_is_in_it(installed: dict[str, Any]) -> None:
    document = sbom(ARTEFACT, installed, CREATED)
    [core] = [each for each in document["components"] if each["name"] == "pydantic_core"]
    assert any(inner["purl"].startswith("pkg:cargo/") for inner in core["components"])
    refs = [each["bom-ref"] for each in document["components"]]
    refs += [i["bom-ref"] for each in document["components"] for i in each.get("components", ())]
    assert len(set(refs)) == len(refs)


def test_the_same_source_gives_the_same_document(installed: dict[str, Any]) -> None:
    assert sbom(ARTEFACT, installed, CREATED) == sbom(ARTEFACT, installed, CREATED)


def test_an_unknown_licence_fails(installed: dict[str, Any]) -> None:
    strange = copy.deepcopy(installed["distributions"][0])
    strange.update(name="strange", expression=None, licence="See the file", classifiers=[])
    with pytest.raises(UnknownLicence, match=r"strange .* does not say its licence"):
        licence_of(strange)
    core = next(each for each in installed["distributions"] if each["name"] == "pydantic_core")
    changed = copy.deepcopy(core)
    changed["sboms"][0]["components"][0]["licenses"] = []
    with pytest.raises(UnknownLicence, match="has no licence"):
        sbom(ARTEFACT, {"needs": [], "distributions": [changed]}, CREATED)


def test_a_changed_file_of_a_package_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "thing-1.dist-info"
    folder.mkdir()
    (tmp_path / "thing.py").write_text("x = 1\n")
    good = "sha256=AAAA"
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1\n")
    (folder / "RECORD").write_text(f"thing.py,{good},6\nthing-1.dist-info/METADATA,,\n")
    [found] = distributions(name="thing", path=[str(tmp_path)])
    with pytest.raises(ValueError, match=r"thing\.py is not what thing 1 was installed with"):
        inventory_program.digest(found)


def test_accepted_advisories_are_statements_of_openvex() -> None:
    accepted = {
        "CVE-1": {
            "package": "ecdsa",
            "justification": "vulnerable_code_not_in_execute_path",
            "reason": "It is never called.",
        }
    }
    document = vex("pkg:pypi/harmonium@1", {"ecdsa": "0.19"}, CREATED, accepted)
    [statement] = document["statements"]
    assert statement["vulnerability"] == {"name": "CVE-1"}
    assert statement["status"] == "not_affected"
    assert statement["products"][0]["subcomponents"] == [{"@id": "pkg:pypi/ecdsa@0.19"}]
    with pytest.raises(KeyError):  # an advisory of something that is no longer in it
        vex("pkg:pypi/harmonium@1", {}, CREATED, accepted)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A small release, signed with keys of this test."""
    if shutil.which(COSIGN) is None:
        pytest.skip("cosign is not here; `make supply` fetches it")
    (tmp_path / "harmonium-1.0-py3-none-any.whl").write_bytes(b"a wheel")
    (tmp_path / "harmonium-1.0.tgz").write_bytes(b"a chart")
    for command in ("sbom", "attest"):
        done = supply(command, tmp_path)
        assert done.returncode == 0, done.stderr
    return tmp_path


def supply(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.supply", command, "--folder", folder, "--cosign", COSIGN],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


@pytest.mark.supply
def test_a_release_is_verified(release: Path) -> None:
    done = supply("verify", release)
    assert done.returncode == 0, done.stderr
    assert "whl: verified (signature, sbom, provenance, vex)" in done.stdout


@pytest.mark.supply
def test_tampering_is_refused(release: Path) -> None:
    wheel = release / "harmonium-1.0-py3-none-any.whl"

    def refused(because: str) -> None:
        done = supply("verify", release)
        assert done.returncode == 1
        assert f"{wheel.name}: NOT VERIFIED" in done.stderr
        assert because in done.stderr

    wheel.write_bytes(b"another wheel")
    refused("cosign verify-blob")
    wheel.write_bytes(b"a wheel")

    listed = release / f"{wheel.name}.cdx.json"
    whole = listed.read_text()
    listed.write_text(whole.replace("MIT", "GPL-3.0-only", 1))
    refused("is not the sbom that was signed")
    listed.write_text(whole)

    bundle = release / f"{wheel.name}.provenance.sigstore.json"
    other = release / "harmonium-1.0.tgz.provenance.sigstore.json"
    signed = bundle.read_text()
    bundle.write_text(other.read_text())  # signed by the same key, of another artefact
    refused("cosign verify-blob-attestation")
    bundle.unlink()
    refused("cosign verify-blob-attestation")
    bundle.write_text(signed)

    strangers = release / "strangers"
    strangers.mkdir()
    (strangers / wheel.name).write_bytes(b"a wheel")
    assert supply("sbom", strangers).returncode == 0
    assert supply("attest", strangers).returncode == 0
    for path in strangers.glob("*.sigstore.json"):
        shutil.copy(path, release / path.name)
    refused("cosign verify-blob")
