"""Every pair of features that the chart takes: the API server of KUBECONFIG takes it, strictly."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from itertools import combinations

import pytest
import yaml

from tests.chart.conftest import IMAGE
from tests.chart.test_pairs import ALTERNATIVES, FEATURES, expected
from tests.cluster.release import CHART, NEEDS_SERVER, ROOT, kubectl
from tests.cluster.test_cluster import run

pytestmark = [pytest.mark.cluster, NEEDS_SERVER]

HELM = ROOT / ".cache" / "helm" / "4.2.3" / "helm"
STRICTLY = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-")


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    name = f"harmonium-test-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.parametrize("first", FEATURES)
def test_pairs_that_the_chart_takes_are_admitted(namespace: str, first: str) -> None:
    """A release of its own for each, so that all are asked for at once."""
    items = []
    for number, pair in enumerate(combinations(FEATURES, 2)):
        if pair[0] != first or frozenset(pair) in ALTERNATIVES or expected(pair):
            continue
        values = [option for name in pair for option in ("--set", FEATURES[name])]
        place = ("--namespace", namespace, "--set", IMAGE)
        text = run(HELM, "template", f"pair-{number}", CHART, *place, *values, "--skip-tests")
        items += [item for item in yaml.safe_load_all(text) if item]
    if items:  # of the last feature none are left
        given = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        kubectl(*STRICTLY, "--namespace", namespace, given=given)
