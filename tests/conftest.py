"""Fixtures every area may use."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the developer's shell reaches a test."""
    for name in list(os.environ):
        if name.startswith("NIM_"):
            monkeypatch.delenv(name)
