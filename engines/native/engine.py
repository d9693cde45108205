"""gpt-oss in PyTorch, as an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from engines.base import Runner
from engines.native.assemble import load_core
from engines.native.config import ModelConfig, NativeConfig
from engines.native.engine_option import EngineOption
from engines.native.loop.core import EngineCore
from engines.native.loop.option import Option
from engines.native.runner import CoreRunner
from engines.native.worker import Submission
from engines.queueing.admission import QueuedEngine
from engines.release import release

RELEASE: Final = release()  # reads files: not for every request


class NativeEngine(QueuedEngine[Submission]):
    """The native engine behind its queue; implements engines.base.Engine."""

    def __init__(
        self,
        config: NativeConfig,
        load: Callable[[NativeConfig], EngineCore] = load_core,
        options: Sequence[Option] = (),
    ) -> None:
        """`options`: of the loop, from parts."""
        self._options = options
        self._config = config
        idle = asyncio.Event()

        def vocab_size() -> int:
            return ModelConfig.from_dir(config.model_dir).vocab_size

        def load_with_options() -> EngineCore:
            # First: an address in use is reported before minutes of loading.
            for option in options:
                option.start()
            try:
                core = load(config)
            except BaseException:
                self._close()
                raise
            core.use(options)
            return core

        runner = CoreRunner("native", RELEASE, config, load_with_options, idle, vocab_size)
        self._core_runner = runner
        self._around = [option for option in options if isinstance(option, EngineOption)]
        outermost: Runner[Submission] = runner
        for option in self._around:
            outermost = option.around(config, runner)
        super().__init__(outermost, config.max_num_waiting, idle)

    async def start(self) -> None:
        await super().start()
        for option in self._around:
            await option.started(self._config, self._core_runner, self.generate)

    async def stop(self) -> None:
        await super().stop()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        for option in self._options:
            option.stop()
