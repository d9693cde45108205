"""The chart's pods as processes under the real controllers: what changes them loses no request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.chart.front import front_of, load
from tests.cluster.player import LACKING_TAG, SCHEDULER, Node, Played, api_of_kubeconfig, playing
from tests.cluster.release import NEEDS_SERVER, PATIENCE_S, Release

pytestmark = [pytest.mark.cluster, pytest.mark.rolling, NEEDS_SERVER]

NUM_CLIENTS = 3
VALUES = f"""
image: {{repository: registry.example.com/harmonium}}
model: nano
replicaCount: 2
schedulerName: {SCHEDULER}
auth: {{open: true}}
podDisruptionBudget: {{enabled: true}}
"""
NEVER_START = {
    "an image that does not exist": f"image.tag={LACKING_TAG}",
    "a command that exits": "environment.NIM_MAX_MODEL_LEN=no",
    "a probe that is never true": "probes.startup.failureThreshold=1",
}
SOON, SOON_S = "progressDeadlineSeconds=20", 20
# What `kubectl rollout status` says; a StatefulSet has no deadline.
STOPS = {"deployment": "exceeded its progress deadline", "statefulset": "timed out waiting"}
KINDS = {"deployment": "", "statefulset": "cache: {type: perPod}\n"}


@pytest.fixture(params=["4.2.3"], ids="helm-{}".format)
def helm(request: pytest.FixtureRequest) -> Path:
    version: str = request.param
    return Path(__file__).parents[2] / ".cache" / "helm" / version / "helm"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def scenario(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / "values.yaml"
    path.write_text(VALUES + KINDS[kind], encoding="utf-8")
    return path


@asynccontextmanager
async def rolled_out(release: Release, kind: str, folder: Path) -> AsyncIterator[Node]:
    assert not await asyncio.to_thread(release.begin)
    async with (
        api_of_kubeconfig() as api,
        playing(api, release.namespace, "demo-harmonium", folder) as node,
    ):
        await complete(release, kind)
        yield node


async def complete(release: Release, kind: str) -> None:
    """Wait as `kubectl rollout status` does."""
    await asyncio.to_thread(
        release.kubectl,
        *("rollout", "status", f"{kind}/demo-harmonium", f"--timeout={PATIENCE_S}s"),
        *("--namespace", release.namespace),
    )


def stopped(release: Release, kind: str) -> str:
    """What `kubectl rollout status` says of a rollout that does not go on."""
    limit_s = PATIENCE_S if kind == "deployment" else SOON_S
    place = (f"{kind}/demo-harmonium", f"--timeout={limit_s}s", "--namespace", release.namespace)
    with pytest.raises(AssertionError) as refused:
        release.kubectl("rollout", "status", *place)
    return str(refused.value)


async def all_ended_well(node: Node, number: int) -> None:
    ended: list[Played] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(ended) < number:
            await asyncio.sleep(0.2)
            ended = [pod for pod in node.played.values() if pod.ending]
    for pod in ended:
        assert pod.ending
        await pod.ending
        state = (pod.code, pod.process.was_killed, pod.process.restarts)
        assert state == (0, False, 0), (pod.name, pod.process.log[-3000:])


async def test_a_change_and_its_rollback_lose_no_request(
    release: Release, kind: str, tmp_path: Path
) -> None:
    async with rolled_out(release, kind, tmp_path) as node, front_of(node.ready_ports) as url:
        async with load(url, NUM_CLIENTS) as outcomes:
            changed = "environment.NIM_LOG_LEVEL=WARNING"
            assert not await asyncio.to_thread(release.upgrade, changed)
            await complete(release, kind)
            assert not await asyncio.to_thread(release.helm, "rollback", "demo")
            await complete(release, kind)
        await all_ended_well(node, 4)
    assert set(outcomes) == {"answered"}, outcomes


async def test_a_drain_loses_no_request(release: Release, kind: str, tmp_path: Path) -> None:
    """Evicts each pod as `kubectl drain` does: again and again while the budget says no."""
    async with rolled_out(release, kind, tmp_path) as node, front_of(node.ready_ports) as url:
        statuses = set()
        async with load(url, NUM_CLIENTS) as outcomes, asyncio.timeout(PATIENCE_S):
            for pod in list(node.played.values()):
                while (status := await node.api.evict(node.namespace, pod.name)) != 201:
                    statuses.add(status)
                    await asyncio.sleep(0.5)
            await all_ended_well(node, 2)
            while len(node.ready_ports()) < 2:
                await asyncio.sleep(0.5)
        assert statuses == {429}, "the budget holds the second pod until the first is replaced"
    assert set(outcomes) == {"answered"}, outcomes


async def test_pods_that_never_start_leave_the_old_ones_serving(
    release: Release, kind: str, tmp_path: Path
) -> None:
    """The rollout stops at the first of them, and a rollback needs nothing besides."""
    async with (
        rolled_out(release, kind, tmp_path) as node,
        front_of(node.ready_ports) as url,
        load(url, NUM_CLIENTS) as outcomes,
    ):
        for fault, change in NEVER_START.items():
            old = [pod for pod in node.played.values() if not pod.ending]
            assert not await asyncio.to_thread(release.upgrade, f"{change},{SOON}")
            async with asyncio.timeout(PATIENCE_S):
                while not any(pod.fails for pod in node.played.values() if not pod.ending):
                    await asyncio.sleep(0.2)
            told = await asyncio.to_thread(stopped, release, kind)
            assert STOPS[kind] in told, (fault, told)
            new = [pod for pod in node.played.values() if not pod.ending and pod not in old]
            assert [pod.fails for pod in new] == [True], fault
            replaced = sum(bool(pod.ending) for pod in old)
            assert replaced == (kind == "statefulset"), fault
            before = outcomes["answered"]
            async with asyncio.timeout(PATIENCE_S):
                while outcomes["answered"] < before + NUM_CLIENTS:
                    await asyncio.sleep(0.2)
            assert not await asyncio.to_thread(release.helm, "rollback", "demo")
            await complete(release, kind)
    assert set(outcomes) == {"answered"}, outcomes
