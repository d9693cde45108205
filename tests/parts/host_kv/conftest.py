"""The core's fixtures."""

from tests.engines.native.scheduling.conftest import (
    assemble,
    greedy_answer,
    is_overlapped,
    loop_kind,
    make_core,
    make_request,
    on_device,
    run_all,
)

__all__ = [
    "assemble",
    "greedy_answer",
    "is_overlapped",
    "loop_kind",
    "make_core",
    "make_request",
    "on_device",
    "run_all",
]
