"""Long conversations made short: what the families of routes need of it. A part does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from service.conversation import Conversation, Message
from service.errors import RequestError
from service.request import Counted, RequestContext

MARK = "Summary of the conversation so far, which was compacted"


@dataclass(frozen=True, slots=True)
class Summary:
    """What became of a conversation, and what it cost."""

    text: str
    cost: Counted


class Compactor(Protocol):
    """Summarizes conversations by the served model, and seals what clients keep of that."""

    async def summarize(
        self, conversation: Conversation, context: RequestContext, instructions: str | None = None
    ) -> Summary:
        """A summary by the model; `instructions` replace the server's own. Raises what a request
        raises, and RequestError where the model wrote none."""

    async def seal(self, text: str, context: RequestContext) -> str:
        """The text for the client to keep: encrypted, and bound to the tenant."""

    async def open(self, sealed: str, context: RequestContext, param: str) -> str:
        """What was sealed; raises RequestError for what this server did not seal for the tenant."""


def summary_message(text: str) -> Message:
    """How the model reads a summary."""
    return Message("developer", f"{MARK}:\n\n{text}")


def no_compaction(param: str) -> RequestError:
    """The refusal where the part is missing."""
    return RequestError(
        f"{param}: this server summarizes no history; use truncation: auto, or ask for a summary.",
        param=param,
        code="unsupported_parameter",
    )
