"""The published client and `harmonium run-batch`, over HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.parts.batches.conftest import HELLO, jsonl, line

pytestmark = pytest.mark.heavy


@pytest.fixture
async def url(open_service: Any) -> AsyncIterator[str]:
    """A real HTTP server in this loop."""
    client = await open_service(HELLO)
    config = uvicorn.Config(client.runtime.jobs.app, port=0, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(60):
        while not server.started:
            await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/v1"
    server.should_exit = True
    await task


async def test_openai_runs_a_batch(openai_sdk: Any, url: str) -> None:
    async with openai_sdk.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        content = jsonl(*(line(f"n{n}") for n in range(20)), line("wrong", temperature=9))
        file = await client.files.create(
            file=("in.jsonl", content),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert file.expires_at - file.created_at == 3600
        assert (await client.files.retrieve(file.id)) == file
        batch = await client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"a": "b"},
        )
        async with asyncio.timeout(60):
            while (batch := await client.batches.retrieve(batch.id)).status != "completed":
                await asyncio.sleep(0.02)
        assert batch.usage.output_tokens > 0
        text = (await client.files.content(batch.output_file_id)).text
        done = [json.loads(each) for each in text.splitlines()]
        assert sorted(each["custom_id"] for each in done) == sorted(f"n{n}" for n in range(20))
        errors = (await client.files.content(batch.error_file_id)).text
        assert json.loads(errors)["custom_id"] == "wrong"
        assert [each.id async for each in client.batches.list()] == [batch.id]
        assert len([each async for each in client.files.list(purpose="batch_output")]) == 2
        with pytest.raises(openai_sdk.NotFoundError):
            await client.files.retrieve("file-x")
        assert (await client.files.delete(file.id)).deleted
        with pytest.raises(openai_sdk.BadRequestError):
            await client.files.create(file=("in.jsonl", content), purpose="fine-tune")


async def test_anthropic_runs_a_batch_of_messages(url: str) -> None:
    import anthropic

    def request(id: str, **changes: Any) -> Any:
        messages = [{"role": "user", "content": "Hi"}]
        params = {"model": "gpt-oss-20b", "max_tokens": 40, "messages": messages}
        return {"custom_id": id, "params": params | changes}

    base = url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as client:
        batches = client.messages.batches
        asked = [*(request(f"n{n}") for n in range(20)), request("wrong", temperature=9.0)]
        batch = await batches.create(requests=asked)
        assert batch.request_counts.processing == 21
        other = await batches.create(requests=asked[:1])
        for id in (batch.id, other.id):
            async with asyncio.timeout(60):
                while (ended := await batches.retrieve(id)).processing_status != "ended":
                    await asyncio.sleep(0.02)
        batch = await batches.retrieve(batch.id)
        counts = batch.request_counts
        assert (counts.succeeded, counts.errored, counts.processing) == (20, 1, 0)
        found = {each.custom_id: each.result async for each in await batches.results(batch.id)}
        assert len(found) == 21
        assert found["n3"].type == "succeeded"
        assert found["n3"].message.content[-1].text == "Hello!"
        assert found["wrong"].type == "errored"
        assert found["wrong"].error.error.type == "invalid_request_error"
        assert [each.id async for each in batches.list(limit=1)] == [other.id, batch.id]
        before = await batches.list(before_id=batch.id)
        assert [each.id for each in before.data] == [other.id]
        assert (await batches.delete(batch.id)).type == "message_batch_deleted"
        with pytest.raises(anthropic.NotFoundError):
            await batches.retrieve(batch.id)
        with pytest.raises(anthropic.BadRequestError, match="earlier request"):
            await batches.create(requests=[request("a"), request("a")])
        assert ended.ended_at is not None


async def run_batch(url: str, *args: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "service", "run-batch", "--url", url, *args]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_run_batch_writes_all_results(url: str, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(jsonl(*(line(f"n{n}") for n in range(20))))
    code, said = await run_batch(url, "-i", str(source), "-o", str(target))
    assert code == 0, said
    ids = [json.loads(each)["custom_id"] for each in target.read_text().splitlines()]
    assert sorted(ids) == sorted(f"n{n}" for n in range(20))
    source.write_bytes(jsonl(line("a"), "{"))
    code, said = await run_batch(url, str(source), str(target))
    assert code == 1
    assert "line 2: " in said
    code, said = await run_batch(url, str(tmp_path / "none"), str(target))
    assert (code, "cannot be read" in said) == (1, True)
