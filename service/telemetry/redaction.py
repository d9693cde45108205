"""Secrets out of everything that is written: those we were given, and what looks like one."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "[redacted]"
MIN_SECRET = 6  # characters; shorter ones would blacken ordinary words

_SHAPES = re.compile(
    r"""
    (?P<scheme>\b(?:bearer|basic)\s+)(?!YOUR_KEY\b)[A-Za-z0-9._~+/=-]{8,}  # an Authorization header
    | \beyJ[\w-]{4,2000}\.[\w-]{4,4000}\.[\w-]*                                 # a JWT
    | (?P<key>\bhmk_[0-9a-f]{12}_)[\w-]{43}                               # ours: the id may stay
    | \b(?:sk|nvapi|hf|ghp|xoxb)[-_][\w-]{16,}                             # keys of known services
    | (?P<url>[a-z]://)[^/\s@]*:[^/\s@]+(?=@)                             # user:password@host
    | (?P<name>\b(?:api[-_]?key|passw(?:or)?d|secret|client_secret|access_token|id_token|cookie)
        ["']?\s*[=:]\s*["']?)[^\s"',;&]{4,}
    """,
    re.IGNORECASE | re.VERBOSE,
)


class Redactor:
    """Callable on any text; knows the exact secrets of this process beside their shapes."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        given = {secret for secret in secrets if len(secret) >= MIN_SECRET}
        # A header's value is read as Latin-1, whatever it was written in.
        misread = {secret.encode(errors="replace").decode("latin-1") for secret in given}
        exact = sorted(given | misread, key=len, reverse=True)
        self._exact = re.compile("|".join(map(re.escape, exact))) if exact else None

    def __call__(self, text: str) -> str:
        if self._exact is not None:
            text = self._exact.sub(HIDDEN, text)
        return _SHAPES.sub(_hide, text)

    def clean(self, value: object) -> object:
        """The same inside lists and mappings; numbers and None stay."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {key: self.clean(item) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.clean(item) for item in value]
        return value if value is None or isinstance(value, int | float) else self(str(value))


def _hide(match: re.Match[str]) -> str:
    return next((kept for kept in match.groups() if kept), "") + HIDDEN
