"""Every Prometheus series of our own, in the order of docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterator

from service.telemetry.series import (
    ACCEPTED,
    CERTIFICATE_EXPIRES,
    DOWNLOAD_SIZE,
    DOWNLOADED,
    ENGINES_HEALTHY,
    GPU,
    INFO,
    KEY_EXPIRES,
    MAX_REQUESTS,
    OWN,
    PROCESS,
    PROCESS_START,
    REPLICA_SLOW,
    REPLICA_UP,
    RESTARTS,
    START_TIME,
    STARTING,
    STEP,
    UP,
    Series,
    engine_series,
)


def all_series() -> Iterator[Series]:
    yield from OWN
    yield RESTARTS
    yield INFO
    yield ENGINES_HEALTHY
    yield REPLICA_UP
    yield REPLICA_SLOW
    yield DOWNLOADED
    yield DOWNLOAD_SIZE
    yield STARTING
    yield START_TIME
    yield KEY_EXPIRES
    yield CERTIFICATE_EXPIRES
    yield UP
    yield MAX_REQUESTS
    for item in engine_series():
        yield item.series
    yield STEP
    yield ACCEPTED
    for board in GPU:
        yield board.series
    for process in PROCESS:
        yield process.series
    yield PROCESS_START
