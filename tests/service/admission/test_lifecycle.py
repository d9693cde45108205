"""From starting to drained: what is admitted when."""

from __future__ import annotations

import asyncio

import pytest

from service.admission.lifecycle import Lifecycle, NotReady, Phase


def test_nothing_is_admitted_before_the_engine_is_ready() -> None:
    lifecycle = Lifecycle()
    with pytest.raises(NotReady, match="loading"), lifecycle.running():
        pass
    lifecycle.mark_ready()
    with lifecycle.running():
        assert lifecycle.num_running == 1
    assert lifecycle.num_running == 0


async def test_draining_refuses_new_requests_and_waits_for_the_running() -> None:
    lifecycle = Lifecycle()
    lifecycle.mark_ready()
    with lifecycle.running():
        draining = asyncio.create_task(lifecycle.drain(grace_s=60))
        while lifecycle.phase is not Phase.DRAINING:
            await asyncio.sleep(0)
        with pytest.raises(NotReady, match="shutting down"), lifecycle.running():
            pass
        assert not draining.done()
    assert await draining


async def test_a_drain_that_outlasts_its_grace_says_so() -> None:
    lifecycle = Lifecycle()
    lifecycle.mark_ready()
    with lifecycle.running():
        assert not await lifecycle.drain(grace_s=0.01)


async def test_an_idle_service_drains_at_once() -> None:
    assert await Lifecycle().drain(grace_s=0)


async def test_an_engine_that_comes_up_while_stopping_does_not_reopen_the_doors() -> None:
    lifecycle = Lifecycle()
    await lifecycle.drain(grace_s=0)
    lifecycle.mark_ready()
    assert lifecycle.phase is Phase.DRAINING
