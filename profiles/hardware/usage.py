"""Current readings of the GPUs; a reading that a board does not give is None."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from profiles.hardware.detection import open_nvml


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """One board at one moment."""

    index: int
    utilization: float | None  # share of the last moments in which a kernel ran, 0 to 1
    used_bytes: int | None
    total_bytes: int | None
    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None  # since the driver was loaded


class GpuMeter:
    """Reads the usage of every board; opened once, as opening takes longer than reading."""

    def __init__(self, open_library: Callable[[], Any] = open_nvml) -> None:
        self._open = open_library
        self._nvml: Any = None
        self._is_opened = False

    def read(self) -> tuple[GpuUsage, ...]:
        """The usage of every board, none without a driver; blocks for some milliseconds."""
        if not self._is_opened:
            self._is_opened, self._nvml = True, self._open()
        nvml = self._nvml
        if nvml is None:
            return ()
        try:
            handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        except nvml.NVMLError:
            return ()
        return tuple(self._usage(index, handle) for index, handle in enumerate(handles))

    def _usage(self, index: int, handle: Any) -> GpuUsage:
        def ask(query: str, take: Callable[[Any], float]) -> Any:
            try:
                return take(getattr(self._nvml, query)(handle))
            except self._nvml.NVMLError:  # not supported, or not allowed
                return None

        return GpuUsage(
            index=index,
            utilization=ask("nvmlDeviceGetUtilizationRates", lambda rates: rates.gpu / 100),
            used_bytes=ask("nvmlDeviceGetMemoryInfo", lambda memory: memory.total - memory.free),
            total_bytes=ask("nvmlDeviceGetMemoryInfo", lambda memory: memory.total),
            power_w=ask("nvmlDeviceGetPowerUsage", lambda milliwatts: milliwatts / 1000),
            power_limit_w=ask("nvmlDeviceGetEnforcedPowerLimit", lambda mw: mw / 1000),
            energy_j=ask("nvmlDeviceGetTotalEnergyConsumption", lambda mj: mj / 1000),
        )
