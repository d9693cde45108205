"""Each change of a value at the API server of KUBECONFIG, on every scenario, there and back.

The server refuses none: what it would refuse, the chart has refused before, with the remedy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from tests.cluster.changes import CHANGES, GROUPS, GROWS
from tests.cluster.release import BY_THE_CHART, CHART, NEEDS_SERVER, Release

# Helm 3 takes what it kept back in an upgrade, but not in a rollback.
KEPT = ("no PersistentVolumeClaim with the name", "no NIMCache with the name")
SCENARIOS = sorted((CHART / "ci").glob("*-values.yaml"))
# Both Helms send the same objects. What differs is the patch that they make of a change, and that
# by its kind of object: these have each kind.
OF_HELM_3 = ("default", "llm-d", "nim-operator", "prefetch")
CASES = [
    pytest.param(version, path, id=f"{version}-{path.stem.removesuffix('-values')}")
    for version in ("4.2.3", "3.17.3")
    for path in SCENARIOS
    if version == "4.2.3" or path.stem.removesuffix("-values") in OF_HELM_3
]

pytestmark = [pytest.mark.cluster, NEEDS_SERVER]


def lacked(failure: str) -> bool:
    return "ensure CRDs are installed first" in failure or "no matches for kind" in failure


def refuses(failure: str) -> bool:
    """Whether it was the chart."""
    return any(sign in failure for sign in BY_THE_CHART)


def halves(names: Sequence[str]) -> Iterator[Sequence[str]]:
    middle = len(names) // 2
    yield from (names[:middle], names[middle:])


@dataclass
class Changing:
    """Changes of one release: what came of them."""

    release: Release
    counts: Counter[str] = field(default_factory=Counter)
    refused: dict[str, str] = field(default_factory=dict)  # by the server

    def run(self) -> None:
        as_it_is = self.release.render()
        rendered = {name: self.release.render(change) for name, change in CHANGES.items()}
        self.counts["refused by the chart"] = sum(text is None for text in rendered.values())
        self.counts["of no effect"] = list(rendered.values()).count(as_it_is)
        left = [name for name, text in rendered.items() if text not in (None, as_it_is)]
        grouped = {name for group in GROUPS for name in group}
        alone = [(name,) for name in left if name not in grouped]
        for group in GROUPS:
            self.try_those([name for name in group if name in left])
        for names in alone:
            self.try_those(names)

    def try_those(self, names: Sequence[str]) -> None:
        """As one upgrade, and in halves if the chart or the server refuses it."""
        if not names:
            return
        change = ",".join(CHANGES[name] for name in names)
        is_group = len(names) > 1
        failure = "" if is_group and self.release.render(change) is None else self._there(change)
        if failure is None:
            self.counts["accepted"] += len(names)
            self._back(names)
        elif is_group:
            for half in halves(names):
                self.try_those(half)
        elif lacked(failure):
            self.counts["kind is lacking"] += 1
        elif refuses(failure):
            self.counts["refused by the chart"] += 1
        else:
            self.refused[f"{names[0]}: there"] = failure

    def _there(self, change: str) -> str | None:
        """What it was refused with; a change that the server refused is undone."""
        failure = self.release.upgrade(change)
        if not failure:
            return None
        if not refuses(failure) and self.release.helm("rollback", "demo"):
            assert not self.release.begin()
        return failure

    def _back(self, names: Sequence[str]) -> None:
        grows = bool(GROWS & {*names})
        if grows:
            self.release.bind()
        failure = self.release.helm("rollback", "demo")
        if not failure:
            return
        if grows:
            self.counts["rollback of a growth refused"] += 1
        elif any(sign in failure for sign in KEPT):
            self.counts["rollback to a kept claim refused by Helm 3"] += 1
        else:
            self.refused[f"{' + '.join(names)}: rollback"] = failure
        if failure := self.release.upgrade():
            self.refused[f"{' + '.join(names)}: back"] = failure
        assert not self.release.begin()


@pytest.mark.parametrize(("helm", "scenario"), CASES, indirect=["helm"])
def test_no_change_of_a_value_is_refused_by_the_server(release: Release) -> None:
    failed = release.begin()
    if lacked(failed):
        pytest.skip(f"the server lacks a kind: {failed.splitlines()[0]}")
    assert not failed
    changing = Changing(release)
    changing.run()
    print(f"\n{release.namespace}: {dict(changing.counts)}")
    assert changing.refused == {}
