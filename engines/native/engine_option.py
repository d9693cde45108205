"""What a part may do around the step loop: before the runner, and once the engine has started."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from engines.base import Adapter, EngineRequest, Runner, TokenEvent
from engines.native.config import NativeConfig
from engines.native.loop.option import Option
from engines.native.runner import CoreRunner
from engines.native.worker import Submission

Generate = Callable[[EngineRequest], AsyncGenerator[TokenEvent, None]]


class EngineOption(Option):
    """An option of the loop that also sees the engine around it; by default it does nothing."""

    def around(self, config: NativeConfig, runner: CoreRunner) -> Runner[Submission]:
        """What the queue gives its requests to: the loop's runner, or one before it."""
        return runner

    async def started(self, config: NativeConfig, runner: CoreRunner, generate: Generate) -> None:
        """The engine serves; `generate` is that of its queue. Raises EngineStartError."""

    def adapter(self, config: NativeConfig, folder: Path) -> Adapter | None:
        """A LoRA adapter, which requests may name from now on, for who runs the loop alone.

        Raises InvalidRequest; None: it has none.
        """
        return None


def is_around(option: Option) -> bool:
    """Whether it puts a runner before the loop's; of those there can be one."""
    return isinstance(option, EngineOption) and type(option).around is not EngineOption.around
