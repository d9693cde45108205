"""The model manifest, as NIM's operator parses it: profiles, string tags, files by their URI."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from profiles.catalogue.catalogue import Catalogue
from profiles.download.source import read_source
from profiles.hardware.gpus import LOADER
from profiles.manifest import as_yaml


@pytest.fixture(scope="module")
def manifest(catalogue: Catalogue) -> dict[str, Any]:
    content: dict[str, Any] = yaml.load(as_yaml(catalogue), Loader=LOADER)
    return content


def test_every_profile_that_can_run_is_there_by_its_id(
    manifest: dict[str, Any], catalogue: Catalogue
) -> None:
    assert re.fullmatch(r"2\..*\..*", manifest["schema_version"])
    ids = [profile["id"] for profile in manifest["profiles"]]
    assert ids == [p.id for p in catalogue.profiles if p.status != "planned"]


def test_what_the_operator_matches_is_text(manifest: dict[str, Any]) -> None:
    for profile in manifest["profiles"]:
        assert {"llm_engine", "precision", "tp", "profile", "gpu", "feat_lora"} <= set(
            profile["tags"]
        )
        assert all(isinstance(value, str) for value in profile["tags"].values())


def test_a_board_has_its_pci_id(manifest: dict[str, Any]) -> None:
    devices = {p["tags"]["gpu"]: p["tags"].get("gpu_device") for p in manifest["profiles"]}
    assert devices["b200"] == "2901:10de"
    assert devices["cpu"] is None


def test_files_have_a_uri_that_we_can_read_and_their_sum(
    manifest: dict[str, Any], catalogue: Catalogue
) -> None:
    listed = {p["id"]: p["workspace"]["files"] for p in manifest["profiles"]}
    profiles = [p for p in catalogue.profiles if p.id in listed and p.model.name == "gpt-oss-20b"]
    for profile in profiles:
        artifacts, files = profile.artifacts, listed[profile.id]
        assert artifacts is not None
        assert {name: file["sha256"] for name, file in files.items()} == {
            file.name: file.sha256 for file in artifacts.files
        }
        for wanted, file in files.items():
            place, _, name = file["uri"].partition("?file=")
            source = read_source(place, "X")
            assert (source.location, source.revision) == (artifacts.repository, artifacts.revision)
            assert name == wanted
    assert {profile.engine for profile in profiles} > {"native", "llama_cpp"}
