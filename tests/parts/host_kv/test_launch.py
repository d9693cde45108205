"""A share of the host's memory reaches the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from profiles.catalogue.models import GpuRequirement, Limits
from profiles.errors import InvalidConstraint
from profiles.hardware.machine import GB
from profiles.hardware.written import parse_hardware
from service.run import startup
from tests.service.run.conftest import cache, default_cache, launch, machine

pytestmark = pytest.mark.usefixtures("machine", "cache")

REACHES: dict[str, tuple[Any, str]] = {  # another value, and the field of the spec it changes
    "engine": ("vllm", "engine"),
    "precision": ("bf16", "precision"),
    "gpu": (GpuRequirement(family="hopper"), "num_devices"),
    "limits": (Limits(max_model_len=4096, max_num_seqs=8, max_num_batched_tokens=7), "limits"),
    "kv_dtype": ("fp8", "kv_dtype"),
    "memory_fraction": (0.5, "memory_fraction"),
    "options": ({"dtype": "bfloat16"}, "options"),
    "environment": ({"A": "1"}, "environment"),
}
# They say when to take the profile, why, how often, and where the head is from (test_drafts.py).
NANO = "native-cpu-fp32-tp1-pp1-balanced"
ONLY_CHOOSE = {"goal", "status", "source", "replicas", "draft", "draft_revision"}

__all__ = ["cache", "default_cache", "machine"]
pytestmark = pytest.mark.usefixtures("machine", "cache")


def test_host_memory_for_blocks_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def bytes_of(free_gb: int = 100, machine: str = "h200", **settings: Any) -> int | None:
        hardware = parse_hardware(machine)
        cpu = replace(hardware.cpu, free_bytes=free_gb * GB)
        with monkeypatch.context() as patch:
            patch.setattr(startup, "visible_hardware", lambda: replace(hardware, cpu=cpu))
            wish = {"model_name": "gpt-oss-20b", "tags_selector": "engine=native", **settings}
            found: int | None = launch(**wish).spec.options.get("host_kv_bytes")
            return found

    assert bytes_of() is None
    wanted: dict[str, Any] = {"enable_kv_cache_host_offload": True}
    assert bytes_of(**wanted) == 10 * GB
    assert bytes_of(**wanted, kv_cache_host_mem_fraction=0.5) == 50 * GB
    assert bytes_of(**wanted, free_gb=60) == 6 * GB
    assert bytes_of(**wanted, machine="h200x2", replicas=2) == 5 * GB
    assert bytes_of(**wanted, model_name="nano", tags_selector=None, model_profile=NANO) == 10 * GB
    with pytest.raises(InvalidConstraint, match=r"HOST_OFFLOAD is set, and .* engine vllm"):
        bytes_of(**wanted, tags_selector="engine=vllm")
