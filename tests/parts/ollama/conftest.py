"""A server whose operator switched Ollama's API on, around a scripted engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from parts.ollama.serving import SERVING
from service.runtime import Runtime
from service.settings.settings import Settings
from tests.service.conftest import events, harmony_ids, make_client, make_runtime

__all__ = ["events", "harmony_ids", "make_client", "make_runtime"]


@pytest.fixture
def make_ollama(make_runtime: Callable[..., Runtime]) -> Callable[..., Runtime]:
    """A ready runtime with the API on, on the server's own port."""

    def make(*scripts: str, **options: Any) -> Runtime:
        settings = Settings.model_validate({"ollama_port": 0})
        return SERVING.wire(make_runtime(*scripts, **options), settings)

    return make


@pytest.fixture
def lines() -> Callable[[str], list[dict[str, Any]]]:
    """The objects of a stream, of which every line is one."""

    def parse(text: str) -> list[dict[str, Any]]:
        assert text.endswith("\n")
        return [json.loads(line) for line in text.splitlines()]

    return parse
