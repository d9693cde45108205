"""How much of the machine's memory an engine may take for K/V blocks beside its device's."""

from __future__ import annotations

from dataclasses import replace

from engines.spec import EngineSpec
from profiles.catalogue.models import Profile
from profiles.errors import InvalidConstraint
from profiles.hardware.machine import Hardware
from profiles.selection.placement import Placement
from service.settings.settings import Settings


def with_host_kv(
    spec: EngineSpec,
    profile: Profile,
    placement: Placement,
    hardware: Hardware,
    settings: Settings,
) -> EngineSpec:
    """Give the spec its share of host memory; raises InvalidConstraint if the engine has no use."""
    if not settings.enable_kv_cache_host_offload:
        return spec
    if spec.engine != "native":
        raise InvalidConstraint(
            f"NIM_ENABLE_KV_CACHE_HOST_OFFLOAD is set, and {profile.title} uses engine"
            f" {spec.engine}: only the native engine keeps K/V in host memory; choose a profile of"
            " it, or unset it"
        )
    each = hardware.cpu.free_bytes * settings.kv_cache_host_mem_fraction / placement.num_replicas
    return replace(spec, options={**spec.options, "host_kv_bytes": int(each)})
