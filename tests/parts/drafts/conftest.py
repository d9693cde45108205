"""The core's fixtures."""

from tests.engines.native.scheduling.conftest import (
    assemble,
    greedy_answer,
    is_overlapped,
    make_core,
    make_request,
    make_sequence,
    run_all,
)

__all__ = [
    "assemble",
    "greedy_answer",
    "is_overlapped",
    "make_core",
    "make_request",
    "make_sequence",
    "run_all",
]
