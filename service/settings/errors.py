"""The error of a setting that cannot be used."""

from __future__ import annotations


class SettingsError(Exception):
    """A setting has a value that cannot be used; the message names key, value and remedy."""
