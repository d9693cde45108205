"""Fixtures of the core for the tests of the pages."""

from tests.service.conftest import harmony_ids, make_client, make_runtime

__all__ = ["harmony_ids", "make_client", "make_runtime"]
