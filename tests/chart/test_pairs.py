"""Every pair of features is decided: it renders, is refused by name, or is told in the notes."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.chart.conftest import IMAGE

pytestmark = pytest.mark.chart

POLICY = "networkPolicy.enabled=true,networkPolicy.from[0].podSelector.matchLabels.a=b"
ETCD = "dynamo.etcd=http://etcd:2379"
SECRET = "environmentSecret=s"
MONITOR = "monitoring.serviceMonitor=true,monitoring.keySecret=k"
SHARED = "cache.type=persistentVolumeClaim,cache.accessMode=ReadWriteMany,responses.type=pod"
WEIGHTS = "weights.path=w,weights.volume.nfs.server=n,weights.volume.nfs.path=/m"
FEATURES = {
    "closed policy": "networkPolicy.enabled=true",
    "policy": POLICY,
    "monitor": MONITOR,
    "rules": "monitoring.rules=true,monitoring.dashboard=true",
    "telemetry": "environment.OTEL_EXPORTER_OTLP_ENDPOINT=http://otel:4318",
    "ingress": "ingress.enabled=true,ingress.host=*.example.com",
    "route": "httpRoute.enabled=true,httpRoute.parentRefs[0].name=g",
    "keys": "auth.keysSecret=k",
    "open": "auth.open=true",
    "tls": "tls.mode=tls,tls.secret=t",
    "mtls": "tls.mode=mtls,tls.secret=t",
    "pods": f"replicaCount=3,{SECRET}",
    "hpa": f"autoscaling.type=hpa,{SECRET}",
    "keda": f"autoscaling.type=keda,autoscaling.prometheus=http://p:9090,{MONITOR},{SECRET}",
    "claim": "cache.type=persistentVolumeClaim",
    "claims": "cache.type=perPod",
    "shared claim": SHARED,
    "download": f"{SHARED},prefetch.enabled=true",
    "weights": f"{WEIGHTS},environment.NIM_SERVED_MODEL_NAME=w",
    "gpu": "gpus=1,model=gpt-oss-20b",
    "dra": "gpus=1,model=gpt-oss-20b,dra.enabled=true",
    "events": f"kvEvents.enabled=true,kvEvents.from[0].podSelector.matchLabels.a=b,{POLICY}",
    "front": f"dynamo.role=front,model=nano,{ETCD},{POLICY}",
    "worker": f"dynamo.role=worker,{ETCD},networkPolicy.enabled=true",
    "llm-d": "kubernetes=llm-d",
    "operator": f"kubernetes=nim-operator,model=gpt-oss-20b,nimOperator.profile={'0' * 64}",
    "kserve": "kubernetes=kserve,model=gpt-oss-20b",
}
# By feature: those that it is refused with, and what the refusal says. All other pairs work.
PLATFORM = (
    "closed policy|policy|monitor|ingress|route|keys|tls|mtls|pods|hpa|keda|claim|claims|"
    "shared claim|download|weights|dra|events|front|worker"
)
REFUSED = {
    "operator": (PLATFORM, "has no effect with kubernetes: nim-operator"),
    "kserve": (PLATFORM, "has no effect with kubernetes: kserve"),
    "worker": (
        "monitor|ingress|route|keys|open|tls|mtls|hpa|keda|shared claim|download",
        "workers",
    ),
    "front": ("download|weights|gpu|dra|events", "a front runs no engine"),
    "closed policy": ("monitor|ingress|route|keda", "networkPolicy.from"),
    "claim": ("pods|hpa|keda", "cache.accessMode"),
    "llm-d": ("tls|mtls|front|worker", "lain"),
    "download": ("weights", "weights.volume"),
    "open": ("keys", "keysSecret"),
}
# One replaces the other: the later value of a `--set` wins.
ALTERNATIVES = {
    *(frozenset(p) for p in combinations(("claim", "claims", "shared claim", "download"), 2)),
    *(frozenset(p) for p in combinations(("llm-d", "operator", "kserve"), 2)),
    *(frozenset(p) for p in (("tls", "mtls"), ("hpa", "keda"), ("front", "worker"))),
}


def expected(pair: tuple[str, str]) -> str | None:
    for one, other in (pair, pair[::-1]):
        others, words = REFUSED.get(one, ("", ""))
        if other in others.split("|"):
            return words
    return None


@pytest.mark.parametrize("helm", ["4.2.3"], indirect=True)
@pytest.mark.parametrize("first", FEATURES)
def test_a_pair_of_features_works_or_is_refused(
    helm: Callable[..., CompletedProcess[str]], chart: Path, first: str
) -> None:
    wrong = {}
    for pair in combinations(FEATURES, 2):
        if pair[0] != first or frozenset(pair) in ALTERNATIVES:
            continue
        values = (option for name in pair for option in ("--set", FEATURES[name]))
        done = helm("template", "demo", chart, "--set", IMAGE, *values)
        words = expected(pair)
        if (done.returncode != 0) != (words is not None) or (words or "") not in done.stderr:
            wrong[pair] = (words, done.stderr[-300:])
    assert wrong == {}


@pytest.mark.parametrize("helm", ["4.2.3"], indirect=True)
@pytest.mark.parametrize(
    ("features", "told"),
    [
        (("policy", "gpu"), "networkPolicy.egress: the download of the model."),
        (("policy", "telemetry"), "networkPolicy.egress: the OpenTelemetry collector."),
        (("tls", "route"), "BackendTLSPolicy"),
        (("mtls", "ingress"), "proxy-ssl-secret"),
    ],
)
def test_what_the_other_end_must_allow_is_told(
    helm: Callable[..., CompletedProcess[str]], chart: Path, features: tuple[str, ...], told: str
) -> None:
    values = (option for name in features for option in ("--set", FEATURES[name]))
    done = helm("install", "demo", chart, "--dry-run=client", "--set", IMAGE, *values)
    assert done.returncode == 0, done.stderr
    assert told in done.stdout
