"""Whatever is sent meanwhile, a message that has arrived is read."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from engines.process.wire import LoopSocket

TIMEOUT_S = 60.0

Pair = tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]


@pytest.fixture
def pair(temp_folder: Path) -> Iterator[Pair]:
    """A host's socket and one of a client, connected to it."""
    context = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.bind(f"ipc://{temp_folder}/a.sock")
    dealer.connect(f"ipc://{temp_folder}/a.sock")
    yield router, dealer
    context.destroy(linger=0)


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_send_hides_no_message_that_arrived_before_it(pair: Pair, is_gone: bool) -> None:
    router, dealer = pair
    arrived: asyncio.Queue[list[bytes]] = asyncio.Queue()
    socket = LoopSocket(router, arrived.put_nowait)
    async with asyncio.timeout(TIMEOUT_S):
        dealer.send(b"first")
        identity, _ = await arrived.get()
        # From here to the next await the loop does not turn: nobody else sees the edge.
        dealer.send(b"second")
        assert select.select([router], [], [], TIMEOUT_S)[0] == [router]
        if is_gone:
            with pytest.raises(zmq.ZMQError, match="Host unreachable"):
                socket.send([b"gone", b"answer"])
        else:
            socket.send([identity, b"answer"])
        assert select.select([router], [], [], 0.0)[0] == []  # the edge is consumed
        assert await arrived.get() == [identity, b"second"]
    socket.close()
