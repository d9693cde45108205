"""What the chart tells whoever installs it."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.chart.conftest import IMAGE

pytestmark = pytest.mark.chart


# Helm 3 renders notes only where it reaches a cluster.
@pytest.mark.parametrize("helm", ["4.2.3"], indirect=True)
def test_the_notes_end_in_a_curl_line_for_the_service(
    helm: Callable[..., CompletedProcess[str]], chart: Path
) -> None:
    arguments = ("--dry-run=client", "--set", "fullnameOverride=assistant,service.port=80")
    result = helm("install", "demo", chart, "--set", IMAGE, *arguments)
    assert "port-forward service/assistant 8000:80" in result.stdout
    assert "curl -s http://127.0.0.1:8000/v1/chat/completions" in result.stdout


@pytest.mark.parametrize("helm", ["4.2.3"], indirect=True)
@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            "replicaCount=1",
            "exec deployment/demo-harmonium -- sh -c 'cat /opt/nim/.cache/api-key-8000 /tmp/",
        ),
        ("auth.keysSecret=callers", "one of the keys in the Secret callers."),
        ("environment.NIM_JWT_ISSUER=https://login.example.com", "a token of your identity"),
    ],
)
def test_the_notes_say_where_the_key_is(
    helm: Callable[..., CompletedProcess[str]], chart: Path, values: str, told: str
) -> None:
    result = helm("install", "demo", chart, "--dry-run=client", "--set", f"{IMAGE},{values}")
    assert told in result.stdout


PLACES = {
    "emptyDir": ("replicaCount=1", "stored responses      each pod's own emptyDir, lost"),
    "a claim of one pod": (
        "cache.type=persistentVolumeClaim",
        "stored responses      the claim demo-harmonium-cache; on NFS",
    ),
    "a claim that a rollout's two pods have": (
        "cache.type=persistentVolumeClaim,cache.accessMode=ReadWriteMany",
        "stored responses      each pod's own emptyDir (2Gi)",
    ),
    "a claim of several pods": (
        "cache.type=persistentVolumeClaim,cache.accessMode=ReadWriteMany,auth.open=true,"
        "replicaCount=2,responses.type=pod",
        "weights               the claim demo-harmonium-cache, shared by all pods",
    ),
    "Redis": (
        "environmentFrom.NIM_REDIS_URL.name=r,environmentFrom.NIM_REDIS_URL.key=k",
        "stored responses      Redis, shared by all pods",
    ),
    "a claim for each pod": (
        "cache.type=perPod",
        "stored responses      each pod's own claim, cache-demo-harmonium-0",
    ),
}


@pytest.mark.parametrize("helm", ["4.2.3"], indirect=True)
@pytest.mark.parametrize("case", PLACES)
def test_the_notes_say_which_place_holds_what(
    helm: Callable[..., CompletedProcess[str]], chart: Path, case: str
) -> None:
    values, told = PLACES[case]
    result = helm("install", "demo", chart, "--dry-run=client", "--set", f"{IMAGE},{values}")
    assert told in result.stdout
