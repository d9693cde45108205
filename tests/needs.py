"""Tests of several parts: skipped, with the reason, where one of them was removed."""

from __future__ import annotations

import pytest

from engines.parts import folders


def needs(*parts: str) -> pytest.MarkDecorator:
    """Skip where one of these parts was removed."""
    removed = [part for part in parts if part not in folders()]
    return pytest.mark.skipif(
        bool(removed), reason=f"parts that were removed: {', '.join(removed) or 'none'}"
    )
