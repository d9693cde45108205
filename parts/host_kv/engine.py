"""Host memory for evicted blocks, where a backend copies blocks there and back."""

from __future__ import annotations

import logging
from typing import Final

from engines.native.assemble import EnginePart
from engines.native.backends.base import Capacity
from engines.native.config import NativeConfig
from engines.native.loop.option import Option
from parts.host_kv.tier import HostTier

log = logging.getLogger(__name__)


class _HostKv(EnginePart):
    def for_backend(self, config: NativeConfig, capacity: Capacity) -> Option | None:
        if capacity.host is None:
            return None
        size = capacity.host.num_blocks * capacity.host.block_bytes
        log.info("Up to %.1f GB of evicted KV blocks are kept in host memory", size / 1e9)
        return HostTier(capacity.host)


ENGINE: Final = _HostKv()
