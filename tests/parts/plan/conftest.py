"""Fixtures of the core for the tests of plans."""

from tests.profiles.conftest import catalogue

__all__ = ["catalogue"]
