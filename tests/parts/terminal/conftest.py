"""Fixtures of the core for the tests of the terminal's commands."""

from tests.e2e.conftest import server
from tests.service.conftest import harmony_ids, make_runtime

__all__ = ["harmony_ids", "make_runtime", "server"]
