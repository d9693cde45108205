"""Callers with limits of their own, and a Redis to count in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from auth.base import Credentials, Principal, PrincipalLimits

HELLO = "<|channel|>final<|message|>Hello there, how are you?<|return|>"


@dataclass(frozen=True)
class Named:
    """Knows every caller by what they say: their key is their name, their tenant its first part."""

    limits: PrincipalLimits | None = None

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        name = credentials.value
        return Principal(name, tenant_id=name.partition("-")[0], limits=self.limits)

    @classmethod
    def limited(cls, **limits: Any) -> Named:
        return cls(PrincipalLimits(**limits) if limits else None)


@pytest.fixture
def named() -> Callable[..., Named]:
    def make(**limits: Any) -> Named:
        return Named.limited(**limits)

    return make


@pytest.fixture
def hello() -> str:
    return HELLO
