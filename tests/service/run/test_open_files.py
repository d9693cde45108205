"""The limit on open files is raised as far as the system goes along."""

from __future__ import annotations

import resource

import pytest

from service.run.listener import allow_open_files

Limits = tuple[int, int]


@pytest.mark.parametrize(
    ("had", "most", "gets"),
    [
        ((1024, 524288), 524288, 65536),
        ((1024, 4096), 4096, 4096),
        ((100_000, 524288), 524288, 100_000),
        ((256, resource.RLIM_INFINITY), 24576, 10240),  # a Mac: "unlimited", and yet no
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 24576, resource.RLIM_INFINITY),
    ],
)
def test_as_many_files_as_the_system_allows(
    had: Limits, most: int, gets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [had]

    def set_limits(_which: int, wanted: Limits) -> None:
        if wanted[0] > most:
            raise ValueError("current limit exceeds maximum limit")
        limits.append(wanted)

    monkeypatch.setattr(resource, "getrlimit", lambda _which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    allow_open_files()
    assert limits[-1] == (gets, had[1])
