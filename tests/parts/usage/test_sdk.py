"""The published client of OpenAI's administrators, and `harmonium usage`, over HTTP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn

from tests.parts.usage.conftest import NUM_HELLO, Clock, Open, as_
from tests.service.conftest import NOON

pytestmark = pytest.mark.heavy

DAY_S = 86_400


@pytest.fixture
async def url(open_service: Open, chat_body: Any, clock: Clock) -> AsyncIterator[str]:
    """A real HTTP server in this loop, which has counted four days."""
    client = await open_service()
    for number in range(4):
        clock.now = NOON + number * DAY_S
        for name in ["team.a"] * (number + 1) + ["rival.b"]:
            answer = await client.post("/v1/chat/completions", json=chat_body(), headers=as_(name))
            assert answer.status_code == 200
    app = client.runtime.jobs.app  # type: ignore[attr-defined]
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(60):
        while not server.started:
            await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/v1"
    server.should_exit = True
    await task


async def test_openai_reads_usage_day_by_day(openai_sdk: Any, url: str) -> None:
    async with openai_sdk.AsyncOpenAI(
        base_url=url, api_key="none", admin_api_key="x.root", max_retries=0
    ) as client:
        usage = client.admin.organization.usage
        start, buckets = int(NOON) // DAY_S * DAY_S, list[Any]()
        page: dict[str, Any] = {}
        while True:
            found = await usage.completions(
                start_time=start, limit=3, group_by=["project_id", "api_key_id"], **page
            )
            buckets += found.data
            if not found.has_more:
                break
            page = {"page": found.next_page}
        assert [bucket.start_time for bucket in buckets] == [start + n * DAY_S for n in range(4)]
        for number, bucket in enumerate(buckets):
            results = {each.project_id: each for each in bucket.results}
            assert results["team"].num_model_requests == number + 1
            assert results["team"].output_tokens == (number + 1) * NUM_HELLO
            assert results["team"].api_key_id == "key-a"
            assert results["rival"].num_model_requests == 1
        chosen = await usage.completions(start_time=start, api_key_ids=["key-b"])
        requests = [sum(each.num_model_requests for each in day.results) for day in chosen.data]
        assert requests == [1, 1, 1, 1]
        with pytest.raises(openai_sdk.BadRequestError) as raised:
            await usage.completions(start_time=start, bucket_width="1h")
        assert raised.value.param == "bucket_width"


async def test_the_command_shows_a_table(url: str) -> None:
    command = [sys.executable, "-m", "service", "usage", "--by", "tenant", "--start", "2026-09-01"]
    process = await asyncio.create_subprocess_exec(
        *command, "--url", url, "--key", "x.root", stdout=-1, stderr=-1
    )
    out, error = await process.communicate()
    assert process.returncode == 0, error
    lines = [line.split()[:2] for line in out.decode().splitlines()]
    assert lines == [["tenant", "requests"], ["rival", "4"], ["team", "10"]]
