"""What of each request is reported: the hooks of telemetry, and the metrics as Prometheus text.

The table of metrics is series.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from engines.base import Engine, EngineStats
from engines.errors import EngineError
from engines.parts import facets
from service.request import RequestContext
from service.store.guard import FailureLog
from service.telemetry.collectors import (
    EngineCollector,
    EngineState,
    GpuCollector,
    ProcessCollector,
    ReadGpus,
)
from service.telemetry.results import Result
from service.telemetry.series import CALLER_LABELS, FINISH_REASONS, OUTCOMES, OWN, Series
from service.telemetry.shared import registry_of_all

if TYPE_CHECKING:
    from service.answer.generation import Generation
    from service.answer.latencies import InterTokenLatencies

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
Page = Literal["nim", "vllm"]
_STATS_TIMEOUT_S = 2.0
_LIMIT_CODES = frozenset({"overloaded"})  # beside what is answered with 429
_FIRST_ROW = ("/v1/chat/completions", "anonymous")


class Metrics:
    """The Prometheus series of one process; nothing here runs per token."""

    def __init__(
        self,
        model_name: str,
        state: Callable[[], EngineState] = EngineState,
        shared_folder: Path | None = None,
        tenants: Iterable[str] = (),
        read_gpus: ReadGpus | None = None,
        about: Mapping[str, str] | None = None,
    ) -> None:
        """`shared_folder`: where the workers count together (service/telemetry/shared.py).

        `tenants`: those that get series of their own; the others share `other`. `read_gpus`
        may block: it is asked in a thread, once for each scrape.
        """
        # Without it every series would have a `_created` twin.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._scraped = registry_of_all(shared_folder) if shared_folder else self.registry
        self._model_name = model_name
        self._tenants = frozenset(tenants)
        self._engine = EngineCollector(model_name, state, about)
        self._scraped.register(self._engine)
        self._read_gpus = read_gpus
        self._rendering = asyncio.Lock()
        self._gpus = GpuCollector()
        self._scraped.register(self._gpus)
        self._scraped.register(ProcessCollector())
        self._families: dict[str, Any] = {
            series.name: _family(series, self.registry) for series in OWN
        }
        self.observers: list[Callable[[Generation], None]] = []  # of every generation's end
        self._rows: dict[tuple[str, str], _Row] = {}
        self._failures = FailureLog()
        for reason in ("speed", "memory"):
            self._families["slow_readers"].labels(reason)
        self._row(*_FIRST_ROW)  # the series exist from the start: rates and alerts need a zero

    def add(self, collector: Collector) -> None:
        """Show what this has to say, too."""
        self._scraped.register(collector)

    @property
    def engine_stats(self) -> EngineStats | None:
        """The engine's counts at the last scrape; None where it did not answer."""
        return self._engine.snapshot[0] if self._engine.snapshot is not None else None

    def observe(self, generation: Generation) -> None:
        """Count a generation that has ended, for any reason."""
        context = generation.plan.context
        with self._writing():
            self._row(context.route, self.tenant_class(context.tenant)).observe(generation)
        for observer in self.observers:
            observer(generation)

    def count_answer(self, context: RequestContext, status: int, seconds: float) -> None:
        """Count an HTTP exchange; status 0 is a client that left before its answer began."""
        with self._writing():
            self._count_exchange(context, status, seconds)

    def expect(self, routes: Iterable[str]) -> None:
        """Have the series of these routes from the start: a rate needs the zero before the first
        failure."""
        with self._writing():
            for route in routes:
                for result in get_args(Result):
                    self._families["answers"].labels(route, result)

    def count_result(self, route: str, result: Result) -> None:
        """Count how an answer ended that the model was to write, for the availability objective."""
        with self._writing():
            self._families["answers"].labels(route, result).inc()

    def _count_exchange(self, context: RequestContext, status: int, seconds: float) -> None:
        self._families["http_requests"].labels(context.route, str(status)).inc()
        self._families["http_request_duration_seconds"].labels(context.route).observe(seconds)
        if context.notes.num_unread:
            self._families["unread_parts"].labels(context.route).inc(context.notes.num_unread)
        if (code := context.notes.error_code) is None:
            return
        self._families["errors"].labels(context.route, code).inc()
        if status == 429 or code in _LIMIT_CODES:
            tenant_class = self.tenant_class(context.tenant)
            self._families["rate_limited"].labels(code, tenant_class).inc()

    def count_auth_failure(self, reason: str) -> None:
        """Count a caller turned away; `reason` is a word of the code, never of the caller."""
        with self._writing():
            self._families["auth_failures"].labels(reason).inc()

    def count_slow_reader(self, reason: Literal["speed", "memory"]) -> None:
        """Count an answer that was ended because its client read it too slowly."""
        with self._writing():
            self._families["slow_readers"].labels(reason).inc()

    def count_pause(self) -> None:
        """Count an answer that waits in the engine until its client has read."""
        with self._writing():
            self._families["answer_pauses"].inc()

    def count_dropped(self, signal: str, number: int) -> None:
        """Count records of telemetry that were lost; may be called from any thread."""
        with self._writing():
            self._families["telemetry_dropped"].labels(signal).inc(number)

    def tenant_class(self, tenant_id: str) -> str:
        """What a tenant is called in labels: there are as many as the operator named, plus two."""
        if not tenant_id:
            return "anonymous"
        return tenant_id if tenant_id in self._tenants else "other"

    async def render(self, engine: Engine, page: Page = "nim", only: Collection[str] = ()) -> bytes:
        """The exposition of all series, with new counts of the engine if it answers; `only` names
        the samples that are wanted, none for all.

        Written in a thread, one at a time: it takes tens of milliseconds, during which streams
        continue.
        """
        async with self._rendering:
            try:
                async with asyncio.timeout(_STATS_TIMEOUT_S):
                    self._engine.snapshot = await engine.stats(), engine.info
            except (EngineError, TimeoutError):
                self._engine.snapshot = None
            return await asyncio.to_thread(self._write, page, only)

    def _write(self, page: Page, only: Collection[str]) -> bytes:
        if self._read_gpus is not None:
            self._gpus.usage = self._read_gpus()
        return generate_latest(_Page(self._scraped, self._model_name, page, only))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Write counts; a request does not fail because its count cannot be written.

        A series that is new may grow what the workers share, for which there may be no room.
        """
        try:
            yield
        except OSError as error:
            self._failures.failed("Metrics cannot be written (%s); some counts are lost.", error)

    def _row(self, route: str, tenant_class: str) -> _Row:
        key = route, tenant_class
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row(self._families, (route, self._model_name, tenant_class))
        return row


class _Row:
    """The children of all caller-labelled families for one set of labels, looked up once."""

    def __init__(self, families: dict[str, Any], labels: tuple[str, ...]) -> None:
        by_caller = [series.name for series in OWN if series.labels == CALLER_LABELS]
        self._children = {name: families[name].labels(*labels) for name in by_caller}
        self._finish = {name: families["finish"].labels(*labels, name) for name in FINISH_REASONS}
        self._outcome = {name: families["requests"].labels(*labels, name) for name in OUTCOMES}

    def observe(self, generation: Generation) -> None:
        self._outcome[generation.outcome].inc()
        default = "error" if generation.outcome == "failure" else "abort"
        for choice in generation.choices:
            self._finish[choice.finish_reason or default].inc()
            self._observe_latencies(choice.latencies)
        if generation.was_computed:
            for name, number in _tokens(generation):
                self._children[name].inc(number)
        if generation.outcome == "success":
            for name, value in _measures(generation):
                self._children[name].observe(value)

    def _observe_latencies(self, latencies: InterTokenLatencies) -> None:
        """Add the sorted times at once, which the library's observe() cannot."""
        histogram = self._children["inter_token_latency_seconds"]
        for bucket, count in zip(histogram._buckets, latencies.counts, strict=True):
            if count:
                bucket.inc(count)
        histogram._sum.inc(latencies.total_s)


def _tokens(generation: Generation) -> Iterator[tuple[str, int]]:
    yield "prompt_tokens", generation.num_prompt_tokens
    yield "cached_prompt_tokens", generation.num_cached_tokens
    yield "completion_tokens", generation.num_completion_tokens
    yield "reasoning_tokens", generation.num_reasoning_tokens
    yield "harmony_resyncs", generation.num_resyncs


def _measures(generation: Generation) -> Iterator[tuple[str, float]]:
    first, ended = generation.first_token_at, generation.ended_at
    if first is None or ended is None:
        return
    started, queued_s = generation.started_at, generation.queued_s
    yield "time_to_first_token_seconds", first - started
    yield "e2e_latency_seconds", ended - started
    yield "queue_time_seconds", queued_s
    yield "prefill_time_seconds", max(0.0, generation.first_event_at - started - queued_s)
    yield "decode_time_seconds", ended - generation.first_event_at
    yield "request_prompt_tokens", generation.num_prompt_tokens
    yield "request_completion_tokens", generation.num_completion_tokens
    yield "inference_time_seconds", ended - started - queued_s
    yield "request_choices", generation.plan.num_choices
    yield "request_max_tokens", generation.plan.sampling.max_tokens
    longest = max(choice.num_tokens for choice in generation.choices)
    yield "request_longest_choice_tokens", longest
    if longest > 1 and ended > first:
        yield "time_per_output_token_seconds", (ended - first) / (longest - 1)
        yield "output_tokens_per_second", (generation.num_completion_tokens - 1) / (ended - first)


def _family(series: Series, registry: CollectorRegistry) -> Counter | Histogram:
    if series.kind == "histogram":
        return Histogram(
            series.family, series.text, series.labels, registry=registry, buckets=series.buckets
        )
    assert series.kind == "counter"  # a gauge would have to say what its sum over workers means
    return Counter(series.family, series.text, series.labels, registry=registry)


class MetricNames:
    """NAMES of parts/<name>/names.py: other servers' names of our series."""

    def families(
        self, page: Page, families: Mapping[str, Metric], model: Mapping[str, str]
    ) -> Iterator[Metric]:
        """The series of a page under other names, made of ours at the moment of a scrape."""
        raise NotImplementedError


class _Page(Collector):
    """One exposition: our series, and other servers' names of them."""

    def __init__(
        self, scraped: CollectorRegistry, model_name: str, page: Page, only: Collection[str]
    ) -> None:
        self._scraped = scraped
        self._model_name = model_name
        self._page = page
        self._only = only

    def collect(self) -> Iterator[Metric]:
        for family in self._families():
            if self._only:
                wanted = [sample for sample in family.samples if sample.name in self._only]
                family = copy(family)
                family.samples = wanted
                if not wanted:
                    continue
            yield family

    def _families(self) -> Iterator[Metric]:
        families = {family.name: family for family in self._scraped.collect()}
        model = {"model_name": self._model_name}
        for names in facets("names", MetricNames).values():
            yield from names.families(self._page, families, model)
        yield from families.values()
