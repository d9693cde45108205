"""What the selector is asked and what it answers: wishes, verdicts on profiles, the selection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from profiles.catalogue.models import Goal, Profile
from profiles.selection.placement import Placement


class Fit(StrEnum):
    """The class of a profile on a machine."""

    RUNNABLE = "runnable"
    LOW_MEMORY = "low memory"
    NOT_INSTALLED = "not installed"
    INCOMPATIBLE = "incompatible"
    NOT_ASKED = "not asked for"


@dataclass(frozen=True, slots=True)
class Constraints:
    """What the operator asked for; an empty one asks for the best there is."""

    model: str | None = None  # 'gpt-oss-20b', or its repository 'openai/gpt-oss-20b'
    goal: Goal | None = None  # a preference, not a filter
    engine: str | None = None
    profile: str | None = None  # an id, a name, 'model/name', NIM 2's name, or 'default'
    tags: Mapping[str, str] = field(default_factory=dict)
    max_model_len: int | None = None  # serve exactly this context length
    num_replicas: int | None = None  # number of engines, whatever a profile says
    memory_fraction: float | None = None  # of a device's memory, whatever a profile says
    quantize: str | None = None  # serve the weights rounded to this while loading, and only so
    # Engine name to None (usable) or 'not installed: <why>'; a missing name is not
    # installed. None as a whole: take every engine as installed.
    installed: Mapping[str, str | None] | None = None
    cpu_only: Mapping[str, str] = field(default_factory=dict)  # engine: why no GPU can be used


@dataclass(frozen=True, slots=True)
class Candidate:
    """A profile that can start now, and where."""

    profile: Profile
    placement: Placement
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """A profile that cannot start now, and why."""

    profile: Profile
    fit: Fit  # never RUNNABLE
    reason: str
    max_model_len: int | None = None  # LOW_MEMORY: the context that would fit
    missing_engine: str = ""  # 'engine vllm is not installed: <why>', whatever else is amiss
    cause: str = ""  # INCOMPATIBLE: the reason in words that fit many profiles, if there are such
    candidate: Candidate | None = None  # NOT_INSTALLED: what it would be
    is_off_by_default: bool = False  # NOT_ASKED: no request excludes it, it has to be named
    is_kept_back: bool = False  # that, as a demonstration model on a machine with a GPU


@dataclass(frozen=True, slots=True)
class Rival:
    """A profile that might have been chosen, and why it was not."""

    profile: Profile
    reason: str  # why the chosen one comes first


@dataclass(frozen=True, slots=True)
class Selection:
    """Every profile, classified; `compatible` is ranked, best first."""

    compatible: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]
    reason: str  # why the first was chosen, or that nothing can run
    rivals: tuple[Rival, ...] = ()  # each differs in engine, GPUs per engine or model
    notes: tuple[str, ...] = ()  # what an operator should know of the choice
    remedy: str = ""  # where nothing can run: what to do

    @property
    def chosen(self) -> Candidate:
        """The best profile; there is one unless `compatible` is empty."""
        return self.compatible[0]
