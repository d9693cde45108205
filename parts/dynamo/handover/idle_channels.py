"""Connections to prefill engines that stay open between two prompts."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from typing import Final

from parts.dynamo.handover.channel import Channel

IDLE_S: Final = 30.0  # a server waits longer, so that it seldom closes one that is about to be used
_MOST_IDLE: Final = 2  # to one engine


class IdleChannels:
    """Open connections that no prompt uses; in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        self._channels: defaultdict[str, deque[tuple[float, Channel]]] = defaultdict(deque)

    def take(self, endpoint: str) -> Channel | None:
        """One that can be used, as far as we know here."""
        while True:
            with self._lock:
                channels = self._channels.get(endpoint)
                if not channels:
                    return None
                since_s, channel = channels.pop()  # the last one used
                if not channels:
                    del self._channels[endpoint]
            # Nothing may have come: the server speaks only when it is asked.
            if time.monotonic() - since_s < IDLE_S and not channel.has_news():
                return channel
            channel.close()

    def put(self, endpoint: str, channel: Channel) -> None:
        """Keep one whose answer has been read to its end."""
        now_s = time.monotonic()
        with self._lock:
            if self._is_closed:
                surplus = [channel]
            else:
                self._channels[endpoint].append((now_s, channel))
                surplus = self._withdraw_surplus(now_s)
        for each in surplus:
            each.close()

    def close(self) -> None:
        """Close them, and all that are put here later."""
        with self._lock:
            self._is_closed = True
            channels = [each for of in self._channels.values() for _, each in of]
            self._channels.clear()
        for channel in channels:
            channel.close()

    def _withdraw_surplus(self, now_s: float) -> list[Channel]:
        """Those that are too old, of any engine, and those that are too many."""
        surplus = []
        for endpoint, channels in [*self._channels.items()]:
            while channels and (len(channels) > _MOST_IDLE or now_s - channels[0][0] >= IDLE_S):
                surplus.append(channels.popleft()[1])
            if not channels:
                del self._channels[endpoint]
        return surplus
