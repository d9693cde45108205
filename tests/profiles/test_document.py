"""docs/profiles.md says what the catalogue says."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.catalogue.catalogue import Catalogue
from profiles.selection.engine_order import preferences
from tools.docs import support
from tools.docs.profiles import render

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_current(catalogue: Catalogue) -> None:
    assert render(catalogue) == (DOCS / "profiles.md").read_text(encoding="utf-8"), "run: make docs"


def test_the_page_has_the_ranking(catalogue: Catalogue) -> None:
    page = render(catalogue)
    assert "1. any other model before the demonstration model" in page
    assert all(preference.because in page for preference in preferences())


@pytest.mark.heavy
def test_the_support_matrix_is_current(catalogue: Catalogue) -> None:
    matrix = support.render(catalogue)
    assert matrix == (DOCS / "support.md").read_text(encoding="utf-8"), "run: make docs"
