"""A native engine that hands K/V over, or takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from engines.base import Runner
from engines.native.assemble import EnginePart
from engines.native.config import NativeConfig
from engines.native.engine_option import EngineOption, Generate
from engines.native.loop.option import Option
from engines.native.runner import CoreRunner
from engines.native.worker import Submission
from parts.dynamo.handover.nixl import check_installed
from parts.dynamo.handover.prefill_source import PrefillSource
from parts.dynamo.handover.prefilled_elsewhere import PrefilledElsewhere
from parts.dynamo.handover.server import HandoverServer
from parts.dynamo.handover.spec import KvHandover


class PrefillRole(EngineOption):
    """Computes prompts for others, and hands their K/V over."""

    def __init__(self, handover: KvHandover) -> None:
        self._server = HandoverServer(handover)

    def start(self) -> None:
        """Take the address: one in use is reported before minutes of loading."""
        self._server.bind()

    async def started(self, config: NativeConfig, runner: CoreRunner, generate: Generate) -> None:
        source = await PrefillSource.of(config, runner, generate)
        self._server.serve(source, asyncio.get_running_loop())

    def stop(self) -> None:
        self._server.stop()


class DecodeRole(EngineOption):
    """Takes the K/V of prompts that others compute."""

    def __init__(self, handover: KvHandover) -> None:
        self._handover = handover

    def around(self, config: NativeConfig, runner: CoreRunner) -> Runner[Submission]:
        return PrefilledElsewhere(runner, config, self._handover)


class _Dynamo(EnginePart):
    def for_spec(self, given: Mapping[str, Any]) -> Option:
        handover = KvHandover(**given)
        if handover.transport == "nixl":
            check_installed()  # before minutes of loading
        return PrefillRole(handover) if handover.role == "prefill" else DecodeRole(handover)


ENGINE: Final = _Dynamo()
