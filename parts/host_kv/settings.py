"""The settings of host memory for K/V."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from service.settings.group import Group


class HostKvSettings(Group):
    """Host memory for K/V"""

    of_engine: ClassVar = ("enable_kv_cache_host_offload",)

    enable_kv_cache_host_offload: bool = Field(
        False,
        description="Keep KV blocks that no longer fit on the GPU in pinned host memory, and copy"
        " them back if that is faster than recomputing them. Native engine only.",
    )
    kv_cache_host_mem_fraction: float = Field(
        0.1,
        gt=0,
        le=0.9,
        description="Share of the free host memory for these blocks, for all replicas together.",
    )


SETTINGS = HostKvSettings
