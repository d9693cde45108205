"""The fixtures of the service."""

from __future__ import annotations

from tests.service.conftest import harmony_ids, make_client, make_runtime, openai_sdk
from tests.service.over_http import serve

__all__ = ["harmony_ids", "make_client", "make_runtime", "openai_sdk", "serve"]
