"""Whoever reaches a port cannot fill the log, and hides nobody else's lines."""

from __future__ import annotations

import logging

import pytest

from engines.lines_per_address import LinesPerAddress

log = logging.getLogger("any")


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lines(clock: Clock) -> LinesPerAddress:
    return LinesPerAddress(num_free=3, interval_s=2.0, clock=clock)


def test_the_first_are_told_and_then_one_in_a_while_with_the_number_left_out(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    few = lines(clock)
    for number in range(1000):
        few.warning(log, "192.0.2.1", "fault %d", number)
    assert caplog.messages == ["fault 0", "fault 1", "fault 2"]
    clock.now_s += 2.0
    few.warning(log, "192.0.2.1", "fault %d", 1000)
    few.warning(log, "192.0.2.1", "fault %d", 1001)
    assert caplog.messages[3:] == ["fault 1000 (997 more such lines were left out)"]
    clock.now_s += 60.0
    few.warning(log, "192.0.2.1", "fault %d", 1002)
    few.warning(log, "192.0.2.1", "fault %d", 1003)
    assert caplog.messages[4:] == [
        "fault 1002 (1 more such lines were left out)",
        "fault 1003",
    ]


def test_another_address_is_told_all_the_same(clock: Clock) -> None:
    few = lines(clock)
    assert [few.take("192.0.2.1") for _ in range(5)] == [0, 0, 0, None, None]
    assert few.take("192.0.2.2") == 0
    assert few.take("::ffff:192.0.2.1") is None, "the same client over an IPv6 socket"


def test_the_addresses_of_one_client_count_as_one(clock: Clock) -> None:
    """A host has a /64 of IPv6 addresses for itself."""
    few = lines(clock)
    told = [few.take(f"2001:db8::{number:x}") for number in range(1000)]
    assert told == [0, 0, 0] + [None] * 997
    assert few.take("2001:db8:0:1::1") == 0


def test_its_memory_is_bounded(clock: Clock) -> None:
    few = lines(clock)
    for number in range(20_000):
        few.take(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(few._of) == 10_000
