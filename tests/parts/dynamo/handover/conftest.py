from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from parts.dynamo.handover.server import HandoverServer
from parts.dynamo.handover.spec import KvHandover
from tests.parts.dynamo.handover.pairs import SECRET, free_endpoint, write_checkpoint
from tests.parts.dynamo.handover.serving import Serve


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small checkpoint; engines of this process compute with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    torch.set_num_threads(before)


@pytest.fixture
def endpoint() -> str:
    return free_endpoint()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve a source; the address."""
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()
    servers = []

    def start(source: Any) -> str:
        endpoint = free_endpoint()
        server = HandoverServer(KvHandover("prefill", SECRET, endpoint))
        server.bind()
        server.serve(source, loop)
        servers.append(server)
        return endpoint

    yield start
    for server in servers:
        server.stop()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), loop).result()  # what was cancelled ends
    loop.call_soon_threadsafe(loop.stop)
    running.join()
    loop.close()
