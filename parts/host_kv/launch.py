"""How much of the machine's memory an engine may take for K/V blocks beside its device's."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engines.spec import EngineSpec
from parts.host_kv.settings import HostKvSettings
from profiles.catalogue.models import Profile
from profiles.errors import InvalidConstraint
from profiles.hardware.machine import Hardware
from profiles.selection.placement import Placement
from service.run.launching import LaunchPart
from service.settings.settings import Settings


class _HostKv(LaunchPart):
    def check(self, settings: Settings, profile: Profile, num_replicas: int) -> None:
        """Raise InvalidConstraint if the engine has no use for host memory."""
        if settings.of(HostKvSettings).enable_kv_cache_host_offload and profile.engine != "native":
            raise InvalidConstraint(
                f"NIM_ENABLE_KV_CACHE_HOST_OFFLOAD is set, and {profile.title} uses engine"
                f" {profile.engine}: only the native engine keeps K/V in host memory; choose a"
                " profile of it, or unset it"
            )

    def with_options(
        self, spec: EngineSpec, placement: Placement, hardware: Hardware, settings: Settings
    ) -> EngineSpec:
        own = settings.of(HostKvSettings)
        if not own.enable_kv_cache_host_offload:
            return spec
        each = hardware.cpu.free_bytes * own.kv_cache_host_mem_fraction / placement.num_replicas
        return replace(spec, options={**spec.options, "host_kv_bytes": int(each)})


LAUNCH: Final = _HostKv()
