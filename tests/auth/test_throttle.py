"""Who fails too often waits, and nobody else does."""

from __future__ import annotations

import pytest

from auth.base import Credentials
from auth.key_record import new_key
from auth.throttle import Throttle, ThrottlePolicy, TooManyFailures

GUESS = Credentials("bearer", "guess")
GOOD = Credentials("bearer", "good")


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def failing(address: str, **policy: int) -> tuple[Throttle, Clock]:
    """A throttle that has seen `num_free` failures of an address."""
    clock = Clock()
    throttle = Throttle(ThrottlePolicy(num_free=3, interval_s=2.0, **policy), clock)
    for _ in range(3):
        throttle.check(address, GUESS)
        throttle.failed(address)
    return throttle, clock


def test_after_a_few_failures_an_address_waits_its_interval() -> None:
    throttle, clock = failing("192.0.2.1")
    with pytest.raises(TooManyFailures):
        throttle.check("192.0.2.1", GUESS)
    clock.now_s += 2.0
    throttle.check("192.0.2.1", GUESS)
    throttle.failed("192.0.2.1")
    with pytest.raises(TooManyFailures):
        throttle.check("192.0.2.1", GUESS)


def test_what_cannot_be_guessed_is_looked_at_always_and_slowed_when_wrong() -> None:
    """Otherwise nobody behind a proxy could come in with a fresh token while another guesses."""
    throttle, clock = failing("192.0.2.1")
    for value in (new_key()[0], "eyJhbGciOiJSUzI1NiJ9.e30.AA"):
        throttle.check("192.0.2.1", Credentials("bearer", value))
        with pytest.raises(TooManyFailures):
            throttle.failed("192.0.2.1")
    throttle.check("192.0.2.1", Credentials("certificate", "CN:gateway"))
    for _ in range(1000):
        with pytest.raises(TooManyFailures):
            throttle.failed("192.0.2.1")
    clock.now_s += 2.0
    throttle.check("192.0.2.1", GUESS)


def test_other_addresses_do_not_wait() -> None:
    failing("192.0.2.1")[0].check("192.0.2.2", GUESS)


def test_who_shares_the_address_and_was_accepted_does_not_wait() -> None:
    throttle, _ = failing("192.0.2.1")
    throttle.accepted("192.0.2.1", GOOD)
    throttle.check("192.0.2.1", GOOD)
    with pytest.raises(TooManyFailures):
        throttle.check("192.0.2.1", Credentials("bearer", "goof"))


def test_an_ipv6_network_counts_as_one_address() -> None:
    throttle, _ = failing("2001:db8::1")
    with pytest.raises(TooManyFailures):
        throttle.check("2001:db8::ffff:2", GUESS)
    throttle.check("2001:db8:0:1::1", GUESS)


def test_memory_is_bounded() -> None:
    throttle, _ = failing("192.0.2.1", max_addresses=8, max_accepted=8)
    for number in range(100):
        throttle.failed(f"192.0.3.{number}")
        throttle.accepted("192.0.2.1", Credentials("bearer", str(number)))
    held = [len(value) for value in vars(throttle).values() if hasattr(value, "__len__")]
    assert held == [8, 8]
    assert "guess" not in repr(vars(throttle))
