"""gpt-oss in PyTorch, as an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from typing import Final

from engines.kv_events.events import EventSink
from engines.native.config import ModelConfig, NativeConfig
from engines.native.core import EngineCore, load_core
from engines.native.runner import CoreRunner
from engines.native.worker import Submission
from engines.queueing.admission import QueuedEngine

RELEASE: Final = version("harmonium")  # reads files: not for every request


class NativeEngine(QueuedEngine[Submission]):
    """The native engine behind its queue; implements engines.base.Engine."""

    def __init__(
        self,
        config: NativeConfig,
        load: Callable[[NativeConfig], EngineCore] = load_core,
        events: EventSink | None = None,
    ) -> None:
        """`events`: is told what the prefix cache holds."""
        self._events = events
        idle = asyncio.Event()

        def vocab_size() -> int:
            return ModelConfig.from_dir(config.model_dir).vocab_size

        def load_and_publish() -> EngineCore:
            if events is None:
                return load(config)
            events.start()  # first: an address that is taken is told before minutes of loading
            try:
                core = load(config)
            except BaseException:
                events.stop()
                raise
            core.publish_to(events)
            return core

        runner = CoreRunner("native", RELEASE, config, load_and_publish, idle, vocab_size)
        super().__init__(runner, config.max_num_waiting, idle)

    async def stop(self) -> None:
        """End all waiting and running requests with EngineDead."""
        await super().stop()
        if self._events is not None:
            await asyncio.to_thread(self._events.stop)
