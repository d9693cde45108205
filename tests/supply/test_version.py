"""A tag must be the version that project, chart and changelog have."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tools.supply.version import differences, notes

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_chart_has_the_projects_version() -> None:
    assert [line for line in differences(VERSION) if "CHANGELOG" not in line] == []


def test_a_tag_of_another_version_is_named_everywhere() -> None:
    assert len(differences("9.9.9")) == 4


def test_notes_are_the_section_of_the_version(tmp_path: Path) -> None:
    text = (
        "# Changelog\n\n## [Unreleased]\n- a\n\n## [1.0.0] - 2026-01-01\n- b\n\n## [0.9.0]\n- c\n"
    )
    (tmp_path / "CHANGELOG.md").write_text(text)
    assert notes("1.0.0", tmp_path) == "- b"
    assert notes("0.9.0", tmp_path) == "- c"
    assert notes("2.0.0", tmp_path) == ""
