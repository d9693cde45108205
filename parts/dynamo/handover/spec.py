"""What an engine that hands K/V over, or takes them, is started with; and who is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from engines.base import EngineRequest
from engines.spec import EngineSpec

PART: Final = "dynamo"  # its key in EngineSpec.parts and EngineRequest.extras
LEAST_HANDED_OVER: Final = 256  # tokens of a prompt to be computed: fewer are where they are needed


@dataclass(frozen=True, slots=True)
class KvHandover:
    """How an engine hands the K/V of prompts to others, or takes them from others."""

    role: Literal["prefill", "decode"]
    secret: str = field(repr=False)  # what both sides know
    endpoint: str | None = None  # tcp://ADDRESS:PORT, which an engine of role prefill binds
    timeout_s: float = 10.0  # that an engine of role decode waits for a prompt's K/V
    transport: Literal["tcp", "nixl"] = "tcp"  # of the blocks, where both engines can

    @classmethod
    def of(cls, spec: EngineSpec) -> KvHandover | None:
        """What a spec says; None where the engine neither gives nor takes K/V."""
        given = spec.parts.get(PART)
        return None if given is None else cls(**given)


def prefilled_at(endpoint: str | None) -> Mapping[str, Any]:
    """The `extras` of a request whose prompt another engine computes: tcp://ADDRESS:PORT."""
    return {} if endpoint is None else {PART: endpoint}


def prefilling_peer(request: EngineRequest) -> str | None:
    """Where another engine computes the request's prompt and hands its K/V over."""
    endpoint: str | None = request.extras.get(PART)
    return endpoint
