"""Calls of built-in tools in one choice."""

from __future__ import annotations

from collections.abc import Sequence

from service.answer.citations import Sources
from service.answer.plan import Hosted
from service.conversation import Delta, DeltaKind
from service.tools import ToolResult, ToolSession

_NO_MORE = ToolResult("Error: no more calls are allowed; answer with what is known.", True)


class HostedCalls:
    """The calls of built-in tools in one choice: collects what the model writes to a tool."""

    def __init__(self, hosted: Hosted) -> None:
        self.num_calls = 0
        self.num_result_tokens = 0
        self.sources = Sources()  # what the answer may cite
        self._hosted = hosted
        self._name = ""
        self._input: list[str] = []
        self.is_whole = False  # a call waits for its result

    def take(self, delta: Delta) -> list[Delta]:
        """Take a piece of a call; gives the call once it is whole, if the answer shows it."""
        if delta.kind is DeltaKind.HOSTED_END:
            self.is_whole = True
            return self._shown()
        self._name = delta.name
        self._input.append(delta.text)
        return []

    def cut(self) -> list[Delta]:
        """The call that the end of the answer cut off, if the answer shows it."""
        return self._shown() if self._name and not self.is_whole else []

    def _shown(self) -> list[Delta]:
        call = Delta(DeltaKind.HOSTED_CALL, "".join(self._input), name=self._name)
        return [call] if self._hosted.is_shown else []

    async def run(self, session: ToolSession) -> tuple[str, ToolResult]:
        """Run the call that is whole; gives its tool's name and its result."""
        name, written = self._name, "".join(self._input)
        self._name, self._input, self.is_whole = "", [], False
        self.num_calls += 1
        if self.num_calls > self._hosted.max_calls:
            return name, _NO_MORE
        result = await session.call(name, written)
        self.sources.add(name, result.text)
        return name, result

    @property
    def is_exhausted(self) -> bool:
        """Whether the model kept calling after it was told not to."""
        return self.num_calls > self._hosted.max_calls

    def show(self, result: ToolResult) -> Sequence[Delta]:
        status = "failed" if result.is_error else "completed"
        shown = Delta(DeltaKind.HOSTED_RESULT, result.text, name=status)
        return [shown] if self._hosted.is_shown else []
