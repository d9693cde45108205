"""Simulated engines behind the product's router."""

from __future__ import annotations

from tools.benchmarks.routing import jobs, routed, ttft_ms


def test_first_tokens_wait_less_where_the_router_knows_of_prompts() -> None:
    load = jobs(160.0, 2.0, 1)
    by_requests, by_prompts = (routed(load, 4, by_prompts=known) for known in (False, True))
    assert len(by_requests) == len(by_prompts) == len(load)
    assert all(record.is_done for record in by_prompts)
    assert ttft_ms(by_prompts)["p99"] < 0.9 * ttft_ms(by_requests)["p99"]
