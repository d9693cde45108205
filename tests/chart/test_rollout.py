"""A rollout of the rendered Deployment, its pods as processes, under load: no answer is lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.chart.kubelet import Pod, PodSpec

pytestmark = pytest.mark.rolling

PROGRAM = Path(sys.executable).with_name("harmonium")
NUM_CLIENTS = 4
PATIENCE_S = 180  # the machine may be busy
BODY = {
    "model": "nano",
    "messages": [{"role": "user", "content": "Count to ten"}],
    "stream": True,
    "max_tokens": 200,
    "ignore_eos": True,
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Service:
    """New connections go to the pods that are ready, in turn."""

    def __init__(self) -> None:
        self.pods: list[Pod] = []
        self._turn = 0
        self._open: set[asyncio.Task[None]] = set()

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        ready = [pod for pod in self.pods if pod.is_ready]
        if not ready:
            writer.close()
            return
        self._turn += 1
        port = ready[self._turn % len(ready)].port
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, other_writer), _copy(other_reader, writer))

    async def close(self) -> None:
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture
async def service() -> AsyncIterator[tuple[Service, str]]:
    service = Service()
    listener = await asyncio.start_server(service.connect, "127.0.0.1", 0)
    yield service, f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    listener.close()
    for pod in service.pods:
        await pod.kill()
    await service.close()


async def ask(url: str) -> str:
    """One request on a connection of its own; says what came of it."""
    try:
        async with (
            httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as client,
            client.stream("POST", "/v1/chat/completions", json=BODY) as answer,
        ):
            lines = [line async for line in answer.aiter_lines() if line]
    except httpx2.TransportError as error:
        return f"lost: {error!r}"
    if answer.status_code != 200:
        return f"{answer.status_code}: {lines[:1]}"
    return "answered" if lines[-1] == "data: [DONE]" else f"cut: {lines[-1]}"


@pytest.mark.parametrize("helm", ["4.2.3"], indirect=True)
async def test_a_rollout_of_the_rendered_pods_loses_no_request(
    objects: Callable[..., dict[str, Any]], service: tuple[Service, str], tmp_path: Path
) -> None:
    front, url = service
    rendered = objects("replicaCount=2", "auth.open=true", "strategy.type=RollingUpdate")
    spec = PodSpec.of(rendered)

    async def start(name: str) -> Pod:
        pod = Pod(spec, free_port(), tmp_path / name)
        pod.folder.mkdir()
        front.pods.append(pod)
        await pod.start(PROGRAM)
        async with asyncio.timeout(PATIENCE_S):
            while not pod.is_ready:
                await asyncio.sleep(0.1)
        return pod

    old = [await start("old-1"), await start("old-2")]
    outcomes: Counter[str] = Counter()
    is_over = asyncio.Event()

    async def client() -> None:
        while not is_over.is_set():
            outcomes[await ask(url)] += 1

    async with asyncio.TaskGroup() as clients:
        for _ in range(NUM_CLIENTS):
            clients.create_task(client())
        for number, pod in enumerate(old):  # maxSurge 0, maxUnavailable 1
            code = await pod.delete()
            assert (code, pod.was_killed, pod.restarts) == (0, False, 0), pod.log[-3000:]
            await start(f"new-{number}")
        is_over.set()
    assert set(outcomes) == {"answered"}, outcomes
    assert outcomes["answered"] >= 2 * NUM_CLIENTS
