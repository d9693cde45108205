"""Limits of callers that replicas count together in a Redis."""

from __future__ import annotations

import asyncio
from typing import Any

from auth.base import PrincipalLimits
from parts.redis.limits import limits_in
from service.admission.concurrency import ConcurrencyLimit
from service.admission.counters import MinuteCounters
from service.admission.gate import Gate, Quotas
from service.run.wiring import gate_of
from service.settings.settings import load


async def test_replicas_count_together_in_redis(
    make_runtime: Any, make_client: Any, hello: str, chat_body: Any, redis_url: str
) -> None:
    counters = [MinuteCounters(remote=limits_in(redis_url)) for _ in range(2)]
    clients = []
    for each in counters:
        gate = Gate(quotas=Quotas(PrincipalLimits(requests_per_min=3), each))
        clients.append(await make_client(make_runtime(hello, gate=gate)))
    path = "/v1/chat/completions"
    statuses = [(await clients[i % 2].post(path, json=chat_body())).status_code for i in range(4)]
    assert statuses == [200, 200, 200, 429]
    for each in counters:
        await each.close()


async def test_replicas_count_running_requests_together_in_redis(
    make_runtime: Any, make_client: Any, hello: str, chat_body: Any, redis_url: str
) -> None:
    places = [ConcurrencyLimit(remote=limits_in(redis_url)) for _ in range(2)]
    runtimes, clients = [], []
    for each in places:
        gate = Gate(quotas=Quotas(PrincipalLimits(max_concurrent=2), concurrency=each))
        runtimes.append(make_runtime(hello, gate=gate, step_s=0.05))
        clients.append(await make_client(runtimes[-1]))
    path = "/v1/chat/completions"
    running = [asyncio.create_task(each.post(path, json=chat_body())) for each in clients]
    async with asyncio.timeout(60):
        for runtime in runtimes:
            while not (await runtime.engine.stats()).num_running:
                await asyncio.sleep(0.005)
    assert (await clients[0].post(path, json=chat_body())).status_code == 429
    assert [(await task).status_code for task in running] == [200, 200]
    assert (await clients[1].post(path, json=chat_body())).status_code == 200
    for each in places:
        await each.close()


async def test_the_places_of_a_dead_replica_come_free_and_those_of_a_living_stay(
    redis_url: str,
) -> None:
    dead, living, other = (
        ConcurrencyLimit(remote=limits_in(redis_url, lease_s=1.0)) for _ in range(3)
    )
    async with dead.hold("eve", 2), living.hold("eve", 2):
        await dead.close()  # as if its process had ended: nobody renews
        async with other.hold("eve", 2) as has_place:
            assert not has_place
        async with asyncio.timeout(60):
            while True:
                async with other.hold("eve", 2) as has_place:
                    if has_place:
                        break
                await asyncio.sleep(0.05)
        await asyncio.sleep(1.2)  # longer than the living one's lease, which it renews
        async with other.hold("eve", 2), other.hold("eve", 2) as has_third_place:
            assert not has_third_place
    for each in (dead, living, other):
        await each.close()


async def test_a_lost_redis_locks_nobody_out_and_limits_go_on_in_memory(
    make_runtime: Any, make_client: Any, hello: str, chat_body: Any, caplog: Any
) -> None:
    counters = MinuteCounters(remote=limits_in("redis://127.0.0.1:1/0"))
    places = ConcurrencyLimit(remote=limits_in("redis://127.0.0.1:1/0"))
    limits = PrincipalLimits(requests_per_min=2, max_concurrent=1)
    gate = Gate(quotas=Quotas(limits, counters, places))
    client = await make_client(make_runtime(hello, gate=gate))
    path = "/v1/chat/completions"
    statuses = [(await client.post(path, json=chat_body())).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    assert caplog.text.count("Redis failed") == 2  # one for each kind of count
    await counters.close()
    await places.close()


async def test_the_limits_of_a_server_with_a_redis_are_counted_there(
    make_runtime: Any, make_client: Any, hello: str, chat_body: Any, redis_url: str
) -> None:
    settings = load({"redis_url": redis_url, "rate_limit_requests": 1})
    statuses = []
    for _ in range(2):
        gate = gate_of(settings)
        client = await make_client(make_runtime(hello, gate=gate))
        answer = await client.post("/v1/chat/completions", json=chat_body())
        statuses.append(answer.status_code)
        await gate.close()
    assert statuses == [200, 429]
