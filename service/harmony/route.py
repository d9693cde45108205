"""Where a message belongs, by what its header says.

docs/harmony.md gives the reasons of each line.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.harmony.builtin import ALL_RECIPIENTS, Builtins
from service.harmony.header import Reading
from service.harmony.types import DeltaKind

# Recipients that are no tool: the message is an ordinary one.
_NOBODY = frozenset({"assistant", "user", "all"})
_BY_CHANNEL = {
    "analysis": DeltaKind.REASONING,
    "commentary": DeltaKind.CONTENT,
    "final": DeltaKind.CONTENT,
}


@dataclass(frozen=True, slots=True)
class Route:
    """Where a message's text goes; kind None waits for the message's end to tell."""

    kind: DeltaKind | None
    name: str = ""  # of the function or built-in tool, where kind is a call's
    is_offered: bool = True  # a call of what nobody offered has its name all the same


def route(
    reading: Reading,
    tool_names: frozenset[str],
    builtins: Builtins,
    *,
    has_channel: bool,
    has_spoken: bool,
) -> Route:
    """Choose by the best evidence: a tool, the final channel, an addressee, the channel
    named, and last what the model would write at this point."""
    called = _called(reading, tool_names, builtins)
    if called and not reading.is_foreign:
        return called
    if reading.channel == "final":
        return Route(DeltaKind.CONTENT)
    if reading.is_foreign or not _NOBODY.issuperset(reading.recipients):
        return Route(DeltaKind.REASONING)
    if reading.channel:
        return Route(_BY_CHANNEL[reading.channel])
    return Route(None if has_channel and not has_spoken else DeltaKind.CONTENT)


def _called(reading: Reading, tool_names: frozenset[str], builtins: Builtins) -> Route | None:
    """The call that the message is; a function may have a built-in tool's name."""
    for to in reading.recipients:
        if to in builtins.hosted:
            return Route(DeltaKind.HOSTED_CALL, to)
    offered = (_offered(to, tool_names) for to in reading.recipients)
    name = next((name for name in offered if name), None)
    if name is not None:
        return Route(DeltaKind.ARGUMENTS, name)
    if not builtins.returns_others or reading.channel == "final":
        return None
    unknown = (_unknown(to) for to in reading.recipients if to not in _NOBODY)
    name = next((name for name in unknown if name), None)
    return Route(DeltaKind.ARGUMENTS, name, is_offered=name in ALL_RECIPIENTS) if name else None


def _unknown(recipient: str) -> str:
    """The name by which a client can say that it has no such tool."""
    name = recipient.removeprefix("functions.").strip(".-")
    return "" if name == "functions" else name


def _offered(recipient: str, tool_names: frozenset[str]) -> str | None:
    """Give the offered tool a recipient means, if there is one."""
    name = recipient.removeprefix("functions.")
    for spelt in (name, name.rstrip(".-")):
        if spelt in tool_names:
            return spelt
    without_namespace = [n for n in tool_names if n.endswith(f".{name}")]
    return without_namespace[0] if len(without_namespace) == 1 else None
