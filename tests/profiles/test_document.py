"""docs/profiles.md and docs/internals/catalogue.md say what the catalogue says."""

from __future__ import annotations

from pathlib import Path

from profiles.catalogue.catalogue import Catalogue
from profiles.selection.engine_order import preferences
from tools.docs import support
from tools.docs.profiles import render, render_catalogue

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pages_are_current(catalogue: Catalogue) -> None:
    listed = (DOCS / "internals" / "catalogue.md").read_text(encoding="utf-8")
    assert render(catalogue) == (DOCS / "profiles.md").read_text(encoding="utf-8"), "run: make docs"
    assert render_catalogue(catalogue) == listed, "run: make docs"


def test_the_pages_have_every_profile_and_the_ranking(catalogue: Catalogue) -> None:
    page, listed = render(catalogue), render_catalogue(catalogue)
    assert all(f"`{profile.name}`" in listed for profile in catalogue.profiles)
    assert "1. any other model before the demonstration model" in page
    assert all(preference.because in page for preference in preferences())


def test_the_support_matrix_is_current(catalogue: Catalogue) -> None:
    matrix = support.render(catalogue)
    assert matrix == (DOCS / "support.md").read_text(encoding="utf-8"), "run: make docs"
