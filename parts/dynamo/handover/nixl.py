"""Bytes from one engine's host memory into another's by NVIDIA's NIXL: RDMA, or what UCX has.

Only the bytes go that way. What is asked, which blocks come and where they lie is sent over the
authenticated connection; NIXL's own connections are not authenticated.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from engines.errors import EngineStartError
from parts.dynamo.handover.channel import HandoverError

_POLL_S: Final = 0.0002
_PARKED_S: Final = 60.0
_REMEDY: Final = (
    "`pip install nixl` into the engine's environment, or set NIM_KV_HANDOVER_TRANSPORT=tcp"
)
Bytes = NDArray[np.uint8]


def check_installed() -> None:
    """Raise EngineStartError where there is no NIXL."""
    if find_spec("nixl") is None:
        raise EngineStartError(f"K/V cannot be handed over by NIXL: it is not installed; {_REMEDY}")


class NixlAgent:
    """This process at NIXL, with buffers that others may read while they are borrowed."""

    def __init__(self, buffer_bytes: int) -> None:
        """Raises EngineStartError where NIXL cannot be used."""
        try:
            from nixl._api import nixl_agent, nixl_agent_config

            # Its own thread answers those who read from here.
            config = nixl_agent_config(enable_prog_thread=True, backends=["UCX"])
            self._agent: Any = nixl_agent(uuid4().hex, config)
        except Exception as error:  # also RuntimeErrors of libraries that it loads
            raise EngineStartError(
                f"K/V cannot be handed over by NIXL: {error}; {_REMEDY}"
            ) from error
        self._buffer_bytes = buffer_bytes
        self._lock = threading.Lock()  # guards all of it: the agent is not for several threads
        self._free: list[Bytes] = []
        self._parked: list[tuple[float, Bytes]] = []  # since when
        self._peers: dict[bytes, str] = {}  # by what they say of themselves

    @contextmanager
    def borrowed(self) -> Iterator[Bytes]:
        """A buffer for one transfer at a time. It is not lent soon after a failure: the transfer
        may still be under way."""
        with self._lock:
            now_s = time.monotonic()
            self._free += [each for since_s, each in self._parked if now_s - since_s >= _PARKED_S]
            self._parked = [each for each in self._parked if now_s - each[0] < _PARKED_S]
            buffer = self._free.pop() if self._free else self._new()
        try:
            yield buffer
        except BaseException:
            with self._lock:
                self._parked.append((time.monotonic(), buffer))
            raise
        with self._lock:
            self._free.append(buffer)

    def described(self) -> bytes:
        """What a peer needs to read the buffers that there are now."""
        with self._lock:
            metadata: bytes = self._agent.get_agent_metadata()
        return metadata

    def read(self, peer: bytes, address: int, into: Bytes, *, within_s: float) -> None:
        """Copy a buffer of a peer; raises HandoverError where that fails or takes longer."""
        try:
            with self._lock:
                handle = self._begin(peer, address, into)
                state = self._agent.transfer(handle)
            try:
                until_s = time.monotonic() + within_s
                while state == "PROC" and time.monotonic() < until_s:
                    time.sleep(_POLL_S)
                    with self._lock:
                        state = self._agent.check_xfer_state(handle)
            finally:
                with self._lock:
                    self._agent.release_xfer_handle(handle)
        except Exception as error:  # classes of its bindings, which have no common one
            self._forget(peer)
            raise HandoverError(f"NIXL: {type(error).__name__}: {error}") from error
        if state != "DONE":
            self._forget(peer)
            raise HandoverError(f"NIXL: the transfer is {state} after {within_s:.1f} s")

    def _begin(self, peer: bytes, address: int, into: Bytes) -> Any:
        if peer not in self._peers:
            name = self._agent.add_remote_agent(peer)
            self._peers[peer] = name.decode() if isinstance(name, bytes) else name
        descriptions = (
            self._agent.get_xfer_descs([(at, into.nbytes, 0)], "DRAM")
            for at in (into.ctypes.data, address)
        )
        return self._agent.initialize_xfer("READ", *descriptions, self._peers[peer])

    def _forget(self, peer: bytes) -> None:
        """Forget it: the next transfer connects again."""
        with self._lock:
            name = self._peers.pop(peer, None)
            if name is None:
                return
            self._peers = {each: of for each, of in self._peers.items() if of != name}
            try:
                self._agent.remove_remote_agent(name)
            except Exception:  # it is gone already
                return

    def _new(self) -> Bytes:
        buffer = np.zeros(self._buffer_bytes, np.uint8)
        self._agent.register_memory([(buffer.ctypes.data, buffer.nbytes, 0, "")], "DRAM")
        return buffer
