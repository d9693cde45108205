"""docs/profiles.md is what the catalogue says."""

from __future__ import annotations

from pathlib import Path

from profiles.catalogue.catalogue import Catalogue
from profiles.document import render
from profiles.selection.engine_order import preferences

PAGE = Path(__file__).parents[2] / "docs" / "profiles.md"


def test_the_page_is_current(catalogue: Catalogue) -> None:
    assert render(catalogue) == PAGE.read_text(encoding="utf-8"), (
        "run: python -m profiles.document docs/profiles.md"
    )


def test_the_page_tells_every_profile_and_the_ranking(catalogue: Catalogue) -> None:
    page = render(catalogue)
    assert all(f"`{profile.name}`" in page for profile in catalogue.profiles)
    assert "1. a model for work before the demonstration model" in page
    assert all(preference.because in page for preference in preferences())
