"""How many API workers serve where no setting says so."""

from __future__ import annotations

import pytest

from service.run.worker_count import count_for

GB = 10**9


@pytest.mark.parametrize(
    ("engines", "cores", "memory", "count", "reason"),
    [
        (1, 8, 16 * GB, 1, "one engine"),
        (1, 128, 2000 * GB, 1, "one engine"),
        (4, 64, 512 * GB, 8, "2 for each of 4 engines"),
        (8, 128, 560 * GB, 16, "2 for each of 8 engines"),
        (4, 8, 512 * GB, 4, "8 CPU cores leave no more beside 4 engines"),
        (4, 2, 512 * GB, 1, "2 CPU cores"),
        (4, 64, 8 * GB, 3, "8 GB of memory"),
    ],
)
def test_two_for_each_engine_as_far_as_the_machine_allows(
    engines: int, cores: int, memory: int, count: int, reason: str
) -> None:
    found, why = count_for(engines, cores, memory)
    assert found == count
    assert reason in why
