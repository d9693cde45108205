"""The core's fixtures."""

from tests.service.conftest import chat_body, harmony_ids, make_client, make_runtime
from tests.service.telemetry.test_metrics import scrape

__all__ = ["chat_body", "harmony_ids", "make_client", "make_runtime", "scrape"]
