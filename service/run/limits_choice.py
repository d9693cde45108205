"""The gate that the settings ask for."""

from __future__ import annotations

from auth.base import PrincipalLimits
from service.admission.counters import Counters
from service.admission.gate import Bounds, Gate
from service.admission.places import Places
from service.admission.quotas import Quotas
from service.settings.settings import Settings


def gate_of(settings: Settings) -> Gate:
    """Workers that have no Redis to count in share every limit out evenly."""
    url = settings.redis_url.get_secret_value() if settings.redis_url else None
    quotas = Quotas(
        PrincipalLimits(
            settings.rate_limit_requests,
            settings.rate_limit_tokens,
            settings.rate_limit_concurrent,
        ),
        Counters(url),
        Places(url),
        num_sharers=1 if url else settings.api_workers,
    )
    bounds = Bounds(
        max_wait_s=settings.max_queue_wait_s,
        max_kv_usage=settings.max_kv_usage,
        timeout_s=settings.request_timeout_s,
        min_priority=settings.min_priority,
    )
    return Gate(bounds, quotas)
