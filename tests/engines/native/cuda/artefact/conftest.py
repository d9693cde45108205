"""A checkpoint whose artefact is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.native.config import NativeConfig
from tests.engines.native.cuda.artefact.artefact_case import config_in


@pytest.fixture
def config(tmp_path: Path) -> NativeConfig:
    return config_in(tmp_path)
