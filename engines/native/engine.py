"""gpt-oss in PyTorch, as an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from typing import Final

from engines.native.config import ModelConfig, NativeConfig
from engines.native.core import EngineCore, load_core
from engines.native.runner import CoreRunner
from engines.native.worker import Submission
from engines.queueing.admission import QueuedEngine

RELEASE: Final = version("harmonium")  # reads files: not for every request


class NativeEngine(QueuedEngine[Submission]):
    """The native engine behind its queue; implements engines.base.Engine."""

    def __init__(
        self, config: NativeConfig, load: Callable[[NativeConfig], EngineCore] = load_core
    ) -> None:
        idle = asyncio.Event()

        def vocab_size() -> int:
            return ModelConfig.from_dir(config.model_dir).vocab_size

        runner = CoreRunner("native", RELEASE, config, lambda: load(config), idle, vocab_size)
        super().__init__(runner, config.max_num_waiting, idle)
