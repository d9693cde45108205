"""The CUDA context of the engine's process, made in a thread while its libraries are imported.

The driver takes a second or more to make it, and holds no lock of Python's meanwhile; PyTorch finds
and uses a device's primary context. What fails here fails again, with words, where PyTorch asks.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Final

_DRIVER: Final = "libcuda.so.1"


def begin_contexts(num_devices: int, driver: str = _DRIVER) -> threading.Thread:
    """Begin to make the primary contexts of the first devices; returns the thread that does."""
    thread = threading.Thread(
        target=_make, args=[num_devices, driver], name="cuda-context", daemon=True
    )
    thread.start()
    return thread


def _make(num_devices: int, driver: str) -> None:
    try:
        cuda = ctypes.CDLL(driver)
    except OSError:
        return
    if cuda.cuInit(0):
        return
    for ordinal in range(num_devices):
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal):
            return
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
