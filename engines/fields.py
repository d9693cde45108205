"""The fields of a request that say how tokens are chosen: one row each.

Derived from the rows: the bounds that engines check and what an engine may lack
(engines/validation.py), the API's fields and what of them is passed on (service/api/common), the
version of the wire (engines/process/wire.py) and the table in docs/engines.md. By hand remains what
a field does. CONTRIBUTING.md says how to add one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from zlib import crc32

Bounds = Mapping[str, float]  # ge, gt, le, lt, min_length, max_length


@dataclass(frozen=True, slots=True)
class InApi:
    """How clients send a field to the routes that take all fields."""

    bounds: Bounds | None = None  # None: as in the engines
    unset: tuple[object, ...] = ()  # values that ask for the default


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field; the default is what asks for nothing."""

    name: str
    kind: type
    default: Any = None
    low: float | None = None
    above: float | None = None  # instead of `low`: the value itself is too low
    high: float | str | None = None  # or what bounds it: vocab_size, or a field beside it
    parts: tuple[Field, ...] = ()  # of a `kind` that is a dataclass
    may_lack: bool = False  # an engine may be without it: its name is then in Capabilities.lacks
    memory: str = ""  # engines without exact_continuation forget it: what to call it
    forbids_prefix_cache: bool = False  # all of the prompt is computed
    holder: Literal["sampling", "request", "api"] = "sampling"  # api: engines do not get it
    api: InApi | None = None  # None: each family of routes has its own way to ask

    @property
    def expected(self) -> str:
        """The bounds in words, without the upper one."""
        if self.above is not None:
            return f"more than {self.above}, at most {{high}}"
        return f"{self.low} or more" if self.high is None else f"{self.low} to {{high}}"

    def holds(self, value: float, high: float | None) -> bool:
        """Whether the value is within the bounds, of which `high` is a number by now."""
        is_enough = value > self.above if self.above is not None else value >= (self.low or 0)
        return is_enough and (high is None or value <= high)

    def read(self, value: Any) -> Any:
        """What a client sent, as engines get it."""
        if self.parts:
            return self.kind(**value)
        return self.default if self.api is not None and value in self.api.unset else value

    @property
    def bounds(self) -> Bounds:
        """What the API checks."""
        if self.api is not None and self.api.bounds is not None:
            return self.api.bounds
        bounds = {"ge": self.low, "gt": self.above, "le": self.high}
        return {name: at for name, at in bounds.items() if isinstance(at, int | float)}


@dataclass(frozen=True, slots=True)
class RepetitionDetection:
    """When an answer repeats itself: it ends with `min_count` equal patterns of one size."""

    max_pattern_size: int  # in tokens
    min_count: int
    min_pattern_size: int = 0


_IN_API: Final = InApi()
_ID_BOUNDS: Final = {"ge": -(1 << 63), "lt": 1 << 63}

FIELDS: Final = (
    Field(name="max_tokens", kind=int, low=1),
    Field(
        name="temperature", kind=float, default=1.0, low=0, high=100,
        api=InApi({"ge": 0, "le": 2}),
    ),
    Field(name="top_p", kind=float, default=1.0, above=0, high=1, api=_IN_API),
    Field(
        name="top_k", kind=int, default=0, low=0, may_lack=True,
        # -1 means all tokens in other servers, 0 in the engines.
        api=InApi({"ge": -1, "le": 1 << 31}, unset=(-1,)),
    ),
    Field(
        name="min_p", kind=float, default=0.0, low=0, high=1, may_lack=True, api=_IN_API,
    ),
    Field(
        name="presence_penalty", kind=float, default=0.0, low=-2, high=2, may_lack=True,
        memory="penalties", api=_IN_API,
    ),
    Field(
        name="frequency_penalty", kind=float, default=0.0, low=-2, high=2, may_lack=True,
        memory="penalties", api=_IN_API,
    ),
    Field(
        name="repetition_penalty", kind=float, default=1.0, low=0.01, high=100, may_lack=True,
        api=InApi({"gt": 0, "le": 10}),
    ),
    Field(name="logit_bias", kind=dict, default={}, may_lack=True, api=_IN_API),
    Field(
        name="min_tokens", kind=int, default=0, low=0, high="max_tokens", may_lack=True,
        api=InApi({"ge": 0, "lt": 1 << 31}),
    ),
    Field(
        name="ignore_eos", kind=bool, holder="api",
        api=_IN_API,
    ),
    Field(
        name="stop_token_ids", kind=list[int], holder="api",
        api=InApi({"max_length": 64}),
    ),
    Field(
        name="include_stop_str_in_output", kind=bool, holder="api",
        api=_IN_API,
    ),
    Field(
        name="cache_salt", kind=str, may_lack=True, holder="request",
        api=InApi({"min_length": 1, "max_length": 256}),
    ),
    Field(name="seed", kind=int, may_lack=True, api=InApi(_ID_BOUNDS)),
    Field(
        # Every engine has it: the queue before it goes by it.
        name="priority", kind=int, default=0, holder="request",
        api=InApi({"ge": -(1 << 31), "lt": 1 << 31}),
    ),
    Field(
        name="repetition_detection", kind=RepetitionDetection, may_lack=True,
        memory="repetition_detection",
        api=_IN_API,
        parts=(
            Field(name="max_pattern_size", kind=int, low=1, high=1024),
            Field(name="min_count", kind=int, low=2, high=131072),
            Field(
                name="min_pattern_size", kind=int, default=0, low=0, high="max_pattern_size",
                api=InApi({"ge": 0, "le": 1024}),
            ),
        ),
    ),
    Field(name="adapter", kind=object, may_lack=True, holder="request"),  # clients name it in model
    Field(name="logprobs", kind=int, low=0, high="vocab_size"),
    Field(
        name="prompt_logprobs", kind=int, low=0, high="vocab_size", may_lack=True,
        forbids_prefix_cache=True,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen: the rows that engines get with each request."""

    max_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 keeps the whole vocabulary
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0  # stop tokens are not generated before this many other tokens
    seed: int | None = None  # the same seed and prompt repeat the same tokens
    repetition_detection: RepetitionDetection | None = None  # of generated tokens
    logprobs: int | None = None  # None: none; N: the chosen token's and the N most likely
    # None: none; N: the log-probability of each prompt token but the first, and the N most likely.
    prompt_logprobs: int | None = None


SAMPLING_FIELDS: Final = tuple(row for row in FIELDS if row.holder == "sampling")


def forbids_prefix_cache(sampling: SamplingParams) -> bool:
    """Whether all of the prompt is computed: nothing is taken from a cache or another engine."""
    rows = (row for row in SAMPLING_FIELDS if row.forbids_prefix_cache)
    return any(getattr(sampling, row.name) != row.default for row in rows)


def version() -> str:
    """A short name for the table: processes with different ones do not understand each other."""
    rows = [(row.name, row.kind.__name__, row.default, row.holder) for row in FIELDS]
    parts = [(row.name, part.name) for row in FIELDS for part in row.parts]
    return f"{crc32(repr((rows, parts)).encode()):08x}"
