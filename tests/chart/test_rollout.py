"""A rollout of the rendered Deployment, its pods as processes, under load: no answer is lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chart.front import PATIENCE_S, front_of, load
from tests.chart.kubelet import Pod, PodSpec, free_port

pytestmark = pytest.mark.rolling

PROGRAM = Path(sys.executable).with_name("harmonium")
NUM_CLIENTS = 4


@pytest.mark.parametrize("helm", ["4.2.3"], indirect=True)
async def test_a_rollout_of_the_rendered_pods_loses_no_request(
    objects: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    rendered = objects("replicaCount=2", "auth.open=true", "strategy.type=RollingUpdate")
    spec = PodSpec.of(rendered)
    pods: list[Pod] = []

    async def start(name: str) -> Pod:
        pod = Pod(spec, free_port(), tmp_path / name)
        pod.folder.mkdir()
        pods.append(pod)
        await pod.start(PROGRAM)
        async with asyncio.timeout(PATIENCE_S):
            while not pod.is_ready:
                await asyncio.sleep(0.1)
        return pod

    try:
        old = [await start("old-1"), await start("old-2")]
        async with (
            front_of(lambda: [pod.port for pod in pods if pod.is_ready]) as url,
            load(url, NUM_CLIENTS) as outcomes,
        ):
            for number, pod in enumerate(old):  # maxSurge 0, maxUnavailable 1
                code = await pod.delete()
                assert (code, pod.was_killed, pod.restarts) == (0, False, 0), pod.log[-3000:]
                await start(f"new-{number}")
    finally:
        for pod in pods:
            await pod.kill()
    assert set(outcomes) == {"answered"}, outcomes
    assert outcomes["answered"] >= 2 * NUM_CLIENTS
