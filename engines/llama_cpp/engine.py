"""A GGUF file of gpt-oss on llama.cpp, as an engine: for CPUs, RTX cards and small machines."""

from __future__ import annotations

import asyncio

from engines.llama_cpp.backend import load_core
from engines.llama_cpp.config import LlamaCppConfig
from engines.llama_cpp.library import version
from engines.native.runner import CoreRunner
from engines.native.worker import Submission
from engines.queueing.admission import QueuedEngine


class LlamaCppEngine(QueuedEngine[Submission]):
    """llama.cpp behind its queue; implements engines.base.Engine."""

    def __init__(self, config: LlamaCppConfig) -> None:
        idle = asyncio.Event()
        runner = CoreRunner("llama_cpp", version(), config, lambda: load_core(config), idle)
        super().__init__(runner, config.max_num_waiting, idle)
