"""A deployment of NVIDIA Dynamo, whose workers are this service's engines on other machines."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from engines.about import About
from engines.adding import command_for
from engines.queueing.admission import QueuedEngine
from engines.spec import EngineSpec
from parts.dynamo.network.log_lines import as_ours


def _create(spec: EngineSpec) -> QueuedEngine[Any]:
    from parts.dynamo.network.engine import DynamoEngine

    return DynamoEngine.from_spec(spec)


def _missing() -> str | None:
    try:
        version("ai-dynamo-runtime")
    except PackageNotFoundError:
        return f"not installed: {command_for('dynamo')}"
    return None


ADAPTER: Final = About(
    _create,
    _missing,
    environment={"DYN_LOG": "error", "DYN_LOGGING_CONSOLE_FORMAT": "jsonl"},
    distributions=("ai-dynamo-runtime",),
    log_line=as_ours,
    needs_vocabulary=False,  # grammars are compiled where the worker's engine is
)
