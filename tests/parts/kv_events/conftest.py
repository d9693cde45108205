"""The fixture of the served tests."""

from tests.e2e.conftest import start_server

__all__ = ["start_server"]
