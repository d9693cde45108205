"""What is known of an engine before its library is loaded: `ABOUT` of engines/<name>/about.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engines.base import Capabilities
from engines.queueing.admission import QueuedEngine
from engines.spec import EngineSpec


@dataclass(frozen=True, slots=True)
class About:
    """One engine. What a function returns costs imports, and is called for when it is needed."""

    create: Callable[[EngineSpec], QueuedEngine[Any]]
    """Make the engine that a spec names, not yet started; raises EngineStartError."""

    missing: Callable[[], str | None] = lambda: None
    """Why it cannot run in this Python; None if it can."""

    cpu_only: Callable[[], str | None] = lambda: None
    """What an installed engine lacks for GPUs; None if nothing."""

    capabilities: Callable[[], Capabilities] = Capabilities
    """What it can do, as far as no option takes it away."""

    log_line: Callable[[str], str | None] = str
    """A line that its process wrote, as one of our log; None for one that is left out."""

    environment: Mapping[str, str] = field(default_factory=dict)  # of its process
    distributions: tuple[str, ...] = ()  # packages whose versions a support report names
    needs_vocabulary: bool = True  # it gets the tokens' bytes, for grammars
    has_our_scheduler: bool = False  # it takes a limit on the time between two tokens
