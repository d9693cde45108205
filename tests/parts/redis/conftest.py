"""The core's fixtures."""

from tests.service.admission.conftest import hello, named
from tests.service.conftest import chat_body, harmony_ids, make_client, make_runtime, redis_url

__all__ = ["chat_body", "harmony_ids", "hello", "make_client", "make_runtime", "named", "redis_url"]
