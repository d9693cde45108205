"""Every Prometheus series of our own, as tables: what exists, what it means, how it is labelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from engines.base import EngineStats
from profiles.hardware.usage import GpuUsage
from service.answer.choice import INTER_TOKEN_BUCKETS_S

PREFIX = "harmonium_"
Kind = Literal["counter", "gauge", "histogram"]

CALLER_LABELS = ("route", "model", "tenant_class")
FINISH_REASONS = ("stop", "length", "tool_calls", "abort", "error")
OUTCOMES = ("success", "failure", "abort")

_TTFT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_E2E_S = (0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600)
_HTTP_S = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_TOKENS = (1, 16, 64, 256, 1024, 4096, 8192, 16384, 32768, 65536, 131072)
_TOKENS_PER_S = (1, 2, 5, 10, 20, 50, 100, 150, 200, 300, 500, 1000)


@dataclass(frozen=True, slots=True)
class Series:
    """One family of series; `name` is without our prefix and without the suffixes of its kind."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = CALLER_LABELS
    buckets: tuple[float, ...] = ()

    @property
    def family(self) -> str:
        """The family's name in the exposition."""
        return PREFIX + self.name

    @property
    def sample(self) -> str:
        """The name that a query of the family's main sample has."""
        return {"counter": f"{self.family}_total", "histogram": f"{self.family}_bucket"}.get(
            self.kind, self.family
        )


def _histogram(name: str, text: str, buckets: tuple[float, ...]) -> Series:
    return Series(name, "histogram", text, buckets=buckets)


OWN: tuple[Series, ...] = (
    Series("requests", "counter", "Generations by how they ended.", (*CALLER_LABELS, "outcome")),
    Series(
        "finish",
        "counter",
        "Choices by why they ended; abort is a client that left.",
        (*CALLER_LABELS, "finished_reason"),
    ),
    Series("prompt_tokens", "counter", "Prompt tokens of generations that ended."),
    Series("cached_prompt_tokens", "counter", "Of these, tokens found in the prefix cache."),
    Series("completion_tokens", "counter", "Generated tokens, reasoning included."),
    Series("reasoning_tokens", "counter", "Of these, tokens of the chain of thought."),
    Series("harmony_resyncs", "counter", "Malformed message headers of the model, mended."),
    _histogram("time_to_first_token_seconds", "Request accepted to first token.", _TTFT_S),
    _histogram(
        "inter_token_latency_seconds", "Time between tokens, each counted.", INTER_TOKEN_BUCKETS_S
    ),
    _histogram(
        "time_per_output_token_seconds",
        "A request's mean time between its tokens.",
        INTER_TOKEN_BUCKETS_S,
    ),
    _histogram("e2e_latency_seconds", "Request accepted to last token.", _E2E_S),
    _histogram("queue_time_seconds", "Waiting in the engine before the first step.", _TTFT_S),
    _histogram("prefill_time_seconds", "End of the wait to the first token.", _TTFT_S),
    _histogram("decode_time_seconds", "First token to last token.", _E2E_S),
    _histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS),
    _histogram("request_completion_tokens", "Generated tokens of a request.", _TOKENS),
    _histogram(
        "output_tokens_per_second", "A request's speed after its first token.", _TOKENS_PER_S
    ),
    Series("http_requests", "counter", "Answers of the API.", ("route", "status")),
    Series(
        "http_request_duration_seconds",
        "histogram",
        "Whole exchanges, streams to their end.",
        ("route",),
        _HTTP_S,
    ),
    Series("errors", "counter", "Error answers by their `code`.", ("route", "code")),
    Series("auth_failures", "counter", "Callers turned away.", ("reason",)),
    Series("rate_limited", "counter", "Requests refused by a limit.", ("limit", "tenant_class")),
    Series(
        "slow_readers",
        "counter",
        "Answers ended because their client read too slowly: `speed` or `memory`.",
        ("reason",),
    ),
    Series("telemetry_dropped", "counter", "Records that no collector took.", ("signal",)),
)


Value = Callable[[EngineStats], float]


@dataclass(frozen=True, slots=True)
class EngineSeries:
    """A series whose value is read from the engine's counts at a scrape."""

    series: Series
    value: Value


def _gauge(name: str, text: str, value: Value) -> EngineSeries:
    return EngineSeries(Series(f"engine_{name}", "gauge", text, ("model",)), value)


def _counter(name: str, text: str, value: Value) -> EngineSeries:
    return EngineSeries(Series(f"engine_{name}", "counter", text, ("model",)), value)


ENGINE: tuple[EngineSeries, ...] = (
    _gauge("running_requests", "Requests being generated for.", lambda s: s.num_running),
    _gauge("waiting_requests", "Requests waiting for room.", lambda s: s.num_waiting),
    _gauge("kv_usage_ratio", "Share of KV blocks in use, 0 to 1.", lambda s: s.kv_usage),
    _gauge("kv_blocks", "KV blocks in all.", lambda s: s.num_kv_blocks),
    _gauge("kv_block_tokens", "Tokens in a KV block.", lambda s: s.kv_block_size),
    _counter(
        "preemptions", "Requests put back for want of KV blocks.", lambda s: s.num_preemptions
    ),
    _counter("prompt_tokens", "Prompt tokens the engine took.", lambda s: s.prompt_tokens),
    _counter(
        "generated_tokens",
        "Tokens generated, also those of requests that still run.",
        lambda s: s.generated_tokens,
    ),
    _counter(
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda s: s.prefix_cache_queries,
    ),
    _counter(
        "prefix_cache_hits",
        "Prompt tokens found in the prefix cache.",
        lambda s: s.prefix_cache_hits,
    ),
    _counter("draft_tokens", "Tokens guessed by speculation.", lambda s: s.draft_tokens),
    _counter(
        "accepted_draft_tokens",
        "Tokens guessed by speculation that were right.",
        lambda s: s.accepted_draft_tokens,
    ),
    _counter(
        "grammars_compiled",
        "Grammars compiled or refused; those found compiled do not count.",
        lambda s: s.num_grammars_compiled,
    ),
    _counter(
        "grammar_compile_seconds",
        "Time that compiling grammars took.",
        lambda s: s.grammar_compile_s,
    ),
)
MAX_REQUESTS = Series("engine_max_requests", "gauge", "Most requests that run at once.", ("model",))


@dataclass(frozen=True, slots=True)
class GpuSeries:
    """A series whose value is read from the GPUs at a scrape."""

    series: Series
    value: Callable[[GpuUsage], float | None]


def _gpu(name: str, kind: Kind, text: str, value: Callable[[GpuUsage], float | None]) -> GpuSeries:
    return GpuSeries(Series(f"gpu_{name}", kind, text, ("gpu",)), value)


GPU: tuple[GpuSeries, ...] = (
    _gpu("utilization_ratio", "gauge", "Share of time a kernel ran.", lambda g: g.utilization),
    _gpu("memory_used_bytes", "gauge", "Memory in use.", lambda g: g.used_bytes),
    _gpu("memory_total_bytes", "gauge", "Memory in all.", lambda g: g.total_bytes),
    _gpu("power_watts", "gauge", "Power drawn.", lambda g: g.power_w),
    _gpu("power_limit_watts", "gauge", "Power allowed.", lambda g: g.power_limit_w),
    _gpu("energy_joules", "counter", "Energy since the driver was loaded.", lambda g: g.energy_j),
)
RESTARTS = Series("engine_restarts", "counter", "Starts of the engine after a death.", ("model",))
INFO = Series(
    "info",
    "gauge",
    "Always 1: what is served, and by what.",
    ("model", "version", "profile", "engine", "gpu"),
)
ENGINES_HEALTHY = Series("engines_healthy", "gauge", "Replicas that answer.", ("model",))
REPLICA_UP = Series(
    "engine_replica_up", "gauge", "1 while this replica answers, else 0.", ("model", "engine")
)
DOWNLOADED = Series(
    "download_bytes", "gauge", "Bytes of the model that are here, while it is fetched.", ("model",)
)
DOWNLOAD_SIZE = Series(
    "download_size_bytes", "gauge", "Bytes of the model in all, while it is fetched.", ("model",)
)
UP = Series("engine_up", "gauge", "1 while the engine answers, else 0.", ("model",))


def all_series() -> Iterator[Series]:
    """Every series under our prefix."""
    yield from OWN
    yield RESTARTS
    yield INFO
    yield ENGINES_HEALTHY
    yield REPLICA_UP
    yield DOWNLOADED
    yield DOWNLOAD_SIZE
    yield UP
    yield MAX_REQUESTS
    for item in ENGINE:
        yield item.series
    for board in GPU:
        yield board.series
