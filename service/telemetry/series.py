"""Every Prometheus series of our own, as tables: what exists, what it means, how it is labelled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from engines.base import STEP_TOKENS, EngineStats
from engines.parts import facets
from profiles.hardware.usage import GpuUsage
from service.answer.latencies import INTER_TOKEN_BUCKETS_S
from service.telemetry.processes import ProcessUsage

PREFIX = "harmonium_"
Kind = Literal["counter", "gauge", "histogram"]

CALLER_LABELS = ("route", "model", "tenant_class")
FINISH_REASONS = ("stop", "length", "tool_calls", "abort", "error")
OUTCOMES = ("success", "failure", "abort")

_TTFT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_E2E_S = (0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600)
_HTTP_S = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_TOKENS = (1, 16, 64, 256, 1024, 4096, 8192, 16384, 32768, 65536, 131072)
_CHOICES = (1, 2, 5, 10, 20)
_TOKENS_PER_S = (1, 2, 5, 10, 20, 50, 100, 150, 200, 300, 500, 1000)


@dataclass(frozen=True, slots=True)
class Series:
    """One family of series; `name` is without our prefix and without the suffixes of its kind."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = CALLER_LABELS
    buckets: tuple[float, ...] = ()
    prefix: str = PREFIX

    @property
    def family(self) -> str:
        return self.prefix + self.name

    @property
    def sample(self) -> str:
        """The name that a query of the family's main sample has."""
        return {"counter": f"{self.family}_total", "histogram": f"{self.family}_bucket"}.get(
            self.kind, self.family
        )


def _histogram(name: str, text: str, buckets: tuple[float, ...]) -> Series:
    return Series(name, "histogram", text, buckets=buckets)


OWN: tuple[Series, ...] = (
    Series("requests", "counter", "Generations, by outcome.", (*CALLER_LABELS, "outcome")),
    Series(
        "finish",
        "counter",
        "Choices, by finish reason; `abort`: the client disconnected.",
        (*CALLER_LABELS, "finished_reason"),
    ),
    Series("prompt_tokens", "counter", "Prompt tokens of completed generations."),
    Series("cached_prompt_tokens", "counter", "Prompt tokens that were in the prefix cache."),
    Series("completion_tokens", "counter", "Generated tokens, reasoning included."),
    Series("reasoning_tokens", "counter", "Generated reasoning tokens."),
    Series("harmony_resyncs", "counter", "Malformed Harmony headers repaired."),
    _histogram("time_to_first_token_seconds", "Request accepted to first token.", _TTFT_S),
    _histogram("inter_token_latency_seconds", "Time between two tokens.", INTER_TOKEN_BUCKETS_S),
    _histogram(
        "time_per_output_token_seconds",
        "Mean time between a request's tokens.",
        INTER_TOKEN_BUCKETS_S,
    ),
    _histogram("e2e_latency_seconds", "Request accepted to last token.", _E2E_S),
    _histogram("queue_time_seconds", "Time in the engine's queue before the first step.", _TTFT_S),
    _histogram("prefill_time_seconds", "Prefill: end of the queue wait to first token.", _TTFT_S),
    _histogram("decode_time_seconds", "First token to last token.", _E2E_S),
    _histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS),
    _histogram("request_completion_tokens", "Generated tokens of a request.", _TOKENS),
    _histogram(
        "output_tokens_per_second",
        "Tokens per second of a request after its first token.",
        _TOKENS_PER_S,
    ),
    _histogram("inference_time_seconds", "End of the queue wait to last token.", _E2E_S),
    _histogram("request_choices", "Number of choices in a request (`n`).", _CHOICES),
    _histogram("request_max_tokens", "The token limit of a request.", _TOKENS),
    _histogram("request_longest_choice_tokens", "Tokens of a request's longest choice.", _TOKENS),
    Series("http_requests", "counter", "HTTP responses.", ("route", "status")),
    Series(
        "answers",
        "counter",
        "Answers at their last byte: `ok`, `error` (the server failed) or `excluded` (refused "
        "as sent, ended by the client or its deadline, or the server starts or stops).",
        ("route", "result"),
    ),
    Series(
        "http_request_duration_seconds",
        "histogram",
        "Duration of HTTP requests, including the whole stream.",
        ("route",),
        _HTTP_S,
    ),
    Series("errors", "counter", "Errors, in streams too, by `code`.", ("route", "code")),
    Series("auth_failures", "counter", "Failed authentications.", ("reason",)),
    Series(
        "rate_limited", "counter", "Requests refused because of a limit.", ("limit", "tenant_class")
    ),
    Series(
        "unread_parts",
        "counter",
        "Pictures, documents and files in tools' results, for each of which the prompt has a line.",
        ("route",),
    ),
    Series(
        "slow_readers",
        "counter",
        "Answers aborted because the client read too slowly, by `speed` or `memory`.",
        ("reason",),
    ),
    Series(
        "answer_pauses",
        "counter",
        "Answers that the engine paused until the client had read the buffered tokens.",
        (),
    ),
    Series(
        "telemetry_dropped",
        "counter",
        "Telemetry records dropped because no collector accepted them.",
        ("signal",),
    ),
)


Value = Callable[[EngineStats], float]


@dataclass(frozen=True, slots=True)
class EngineSeries:
    """A series whose value is read from the engine's counts at a scrape.

    SERIES of parts/<name>/series.py is a tuple of these.
    """

    series: Series
    value: Value


def gauge(name: str, text: str, value: Value | None = None) -> EngineSeries:
    """By default the value is what a part holds under this name."""
    series = Series(f"engine_{name}", "gauge", text, ("model",))
    return EngineSeries(series, value or (lambda stats: stats.levels.get(name, 0)))


def counter(name: str, text: str, value: Value | None = None) -> EngineSeries:
    """By default the value is what a part has counted under this name."""
    series = Series(f"engine_{name}", "counter", text, ("model",))
    return EngineSeries(series, value or (lambda stats: stats.extras.get(name, 0)))


ENGINE: tuple[EngineSeries, ...] = (
    gauge("running_requests", "Requests running.", lambda s: s.num_running),
    gauge("waiting_requests", "Requests waiting.", lambda s: s.num_waiting),
    gauge("kv_usage_ratio", "Share of KV blocks in use, 0 to 1.", lambda s: s.kv_usage),
    gauge("kv_blocks", "Total KV blocks.", lambda s: s.num_kv_blocks),
    gauge("kv_block_tokens", "Tokens in a KV block.", lambda s: s.kv_block_size),
    counter(
        "preemptions", "Requests preempted because KV blocks ran out.", lambda s: s.num_preemptions
    ),
    counter("prompt_tokens", "Prompt tokens accepted by the engine.", lambda s: s.prompt_tokens),
    counter(
        "generated_tokens",
        "Generated tokens, including those of running requests.",
        lambda s: s.generated_tokens,
    ),
    counter(
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda s: s.prefix_cache_queries,
    ),
    counter(
        "prefix_cache_hits",
        "Prompt tokens found in the prefix cache.",
        lambda s: s.prefix_cache_hits,
    ),
    counter("draft_tokens", "Draft tokens of speculative decoding.", lambda s: s.draft_tokens),
    counter(
        "accepted_draft_tokens",
        "Draft tokens of speculative decoding that were accepted.",
        lambda s: s.accepted_draft_tokens,
    ),
    counter("drafts", "Verified drafts, each of one or more tokens.", lambda s: s.num_drafts),
    counter(
        "grammars_compiled",
        "Grammars compiled or refused; cache hits are not counted.",
        lambda s: s.num_grammars_compiled,
    ),
    counter(
        "grammar_compile_seconds", "Time spent compiling grammars.", lambda s: s.grammar_compile_s
    ),
)


@cache
def engine_series() -> tuple[EngineSeries, ...]:
    """The core's series and those of the parts."""
    return (*ENGINE, *(row for found in facets("series", tuple).values() for row in found))


# Of engines that count them.
STEP = Series(
    "engine_step_tokens",
    "histogram",
    "Tokens that an engine step computed, for all its requests.",
    ("model",),
    STEP_TOKENS,
)
ACCEPTED = Series(
    "engine_accepted_drafts",
    "counter",
    "Drafts whose token at this position was accepted.",
    ("model", "position"),
)
MAX_REQUESTS = Series(
    "engine_max_requests", "gauge", "Maximum requests that run at once (batch size).", ("model",)
)


@dataclass(frozen=True, slots=True)
class GpuSeries:
    """A series whose value is read from the GPUs at a scrape."""

    series: Series
    value: Callable[[GpuUsage], float | None]


def _gpu(name: str, kind: Kind, text: str, value: Callable[[GpuUsage], float | None]) -> GpuSeries:
    return GpuSeries(Series(f"gpu_{name}", kind, text, ("gpu",)), value)


GPU: tuple[GpuSeries, ...] = (
    _gpu(
        "utilization_ratio",
        "gauge",
        "GPU utilization: share of time in which a kernel ran.",
        lambda g: g.utilization,
    ),
    _gpu("memory_used_bytes", "gauge", "Memory in use.", lambda g: g.used_bytes),
    _gpu("memory_total_bytes", "gauge", "Total memory.", lambda g: g.total_bytes),
    _gpu("power_watts", "gauge", "Power draw.", lambda g: g.power_w),
    _gpu("power_limit_watts", "gauge", "Power limit.", lambda g: g.power_limit_w),
    _gpu("energy_joules", "counter", "Energy since the driver was loaded.", lambda g: g.energy_j),
)


@dataclass(frozen=True, slots=True)
class ProcessSeries:
    """A series of the names that Prometheus' clients use, by part of the server."""

    series: Series
    value: Callable[[ProcessUsage], float]


def _process(
    name: str, kind: Kind, text: str, value: Callable[[ProcessUsage], float]
) -> ProcessSeries:
    return ProcessSeries(Series(f"process_{name}", kind, text, ("process",), prefix=""), value)


PROCESS: tuple[ProcessSeries, ...] = (
    _process("cpu_seconds", "counter", "Processor time, user and system.", lambda p: p.cpu_s),
    _process("resident_memory_bytes", "gauge", "Resident memory.", lambda p: p.resident_bytes),
    _process("open_fds", "gauge", "Open file descriptors.", lambda p: p.open_fds),
    _process("processes", "gauge", "Processes.", lambda p: p.num_processes),
)
PROCESS_START = Series(
    "process_start_time_seconds",
    "gauge",
    "Start of the server in seconds since 1970.",
    (),
    prefix="",
)
RESTARTS = Series("engine_restarts", "counter", "Engine restarts.", ("model",))
INFO = Series(
    "info",
    "gauge",
    "Always 1. The labels describe the served model and its engine.",
    ("model", "version", "profile", "engine", "gpu"),
)
ENGINES_HEALTHY = Series("engines_healthy", "gauge", "Replicas that respond.", ("model",))
REPLICA_UP = Series(
    "engine_replica_up", "gauge", "1 while this replica responds, else 0.", ("model", "engine")
)
REPLICA_SLOW = Series(
    "engine_replica_slow",
    "gauge",
    "1 while requests avoid this replica because its tokens take much longer than another's.",
    ("model", "engine"),
)
DOWNLOADED = Series("download_bytes", "gauge", "Bytes of the model downloaded so far.", ("model",))
DOWNLOAD_SIZE = Series(
    "download_size_bytes",
    "gauge",
    "Total bytes of the model's download, while it is in progress.",
    ("model",),
)
STARTING = Series("starting", "gauge", "1 until all engines were ready once.", ("model",))
START_TIME = Series(
    "start_duration_seconds", "gauge", "Duration of the start, so far or in total.", ("model",)
)
KEY_EXPIRES = Series(
    "key_expires_timestamp_seconds",
    "gauge",
    "When an active API key expires, in seconds since 1970; keys that were rotated are left out.",
    ("key",),
)
CERTIFICATE_EXPIRES = Series(
    "tls_certificate_expires_timestamp_seconds",
    "gauge",
    "When the server's TLS certificate expires, in seconds since 1970.",
    (),
)
UP = Series("engine_up", "gauge", "1 while the engine responds, else 0.", ("model",))
