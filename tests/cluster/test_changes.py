"""Each change of a value at the API server of KUBECONFIG, on every scenario, there and back.

The server refuses none: what it would refuse, the chart has refused before, with the remedy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.cluster.changes import CHANGES, GROWS, TOGETHER
from tests.cluster.release import BY_THE_CHART, CHART, NEEDS_SERVER, Release

# Helm 3 takes what it kept back in an upgrade, but not in a rollback.
KEPT = ("no PersistentVolumeClaim with the name", "no NIMCache with the name")
SCENARIOS = sorted((CHART / "ci").glob("*-values.yaml"))

pytestmark = [pytest.mark.cluster, NEEDS_SERVER]


def lacked(failure: str) -> bool:
    return "ensure CRDs are installed first" in failure or "no matches for kind" in failure


def together(release: Release, names: Sequence[str]) -> dict[str, str]:
    """The changes as one where the chart takes them so, else in halves."""
    joined = ",".join(CHANGES[name] for name in names)
    values = ("--values", release.scenario, "--set", joined)
    if len(names) == 1 or not release.helm("template", "demo", CHART, *values):
        return {" + ".join(names): joined}
    middle = len(names) // 2
    return together(release, names[:middle]) | together(release, names[middle:])


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_no_change_of_a_value_is_refused_by_the_server(release: Release) -> None:
    failed = release.begin()
    if lacked(failed):
        pytest.skip(f"the server lacks a kind: {failed.splitlines()[0]}")
    assert not failed
    counts: Counter[str] = Counter()
    refused: dict[str, str] = {}
    singly = {name: change for name, change in CHANGES.items() if name not in TOGETHER}
    for name, change in (together(release, TOGETHER) | singly).items():
        failure = release.upgrade(change)
        if lacked(failure):
            counts["kind is lacking"] += 1
        elif any(sign in failure for sign in BY_THE_CHART):
            counts["refused by the chart"] += 1
            continue
        elif failure:
            refused[f"{name}: there"] = failure
        else:
            counts["accepted"] += name.count(" + ") + 1
        if name in GROWS:
            release.bind()
        if failure := release.helm("rollback", "demo"):
            if name in GROWS:
                counts["rollback of a growth refused"] += 1
            elif any(sign in failure for sign in KEPT):
                counts["rollback to a kept claim refused by Helm 3"] += 1
            else:
                refused[f"{name}: rollback"] = failure
            if failure := release.upgrade():
                refused[f"{name}: back"] = failure
            assert not release.begin()
    print(f"\n{release.namespace}: {dict(counts)}, refused by the server: {len(refused)}")
    assert refused == {}
