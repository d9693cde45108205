"""What the chart makes for the Prometheus operator and Grafana's sidecar."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.chart

Objects = Callable[..., dict[str, Any]]
KINDS = {"ServiceMonitor", "PrometheusRule"}


def test_nothing_of_it_is_made_unless_asked_for(objects: Objects) -> None:
    rendered = objects()
    assert not KINDS & rendered.keys()
    assert "grafana_dashboard" not in str(rendered)


def test_the_service_monitor_finds_the_service_and_has_a_key(objects: Objects) -> None:
    rendered = objects("monitoring.serviceMonitor=true", "monitoring.keySecret=scrape-key")
    spec = rendered["ServiceMonitor"]["spec"]
    service = rendered["Service"]
    assert spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = spec["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert endpoint["path"] == "/metrics", "the page with our names and vLLM's"
    assert endpoint["authorization"]["credentials"] == {"name": "scrape-key", "key": "key"}


def test_prometheus_finds_it_by_labels_of_the_users(objects: Objects) -> None:
    rendered = objects(
        "monitoring.serviceMonitor=true",
        "monitoring.keySecret=key",
        "monitoring.rules=true",
        "monitoring.labels.release=prometheus",
        "monitoring.interval=7s",
    )
    for kind in KINDS:
        assert rendered[kind]["metadata"]["labels"]["release"] == "prometheus"
    assert rendered["ServiceMonitor"]["spec"]["endpoints"][0]["interval"] == "7s"


def test_the_scrape_speaks_tls(objects: Objects) -> None:
    rendered = objects("monitoring.serviceMonitor=true", "tls.mode=mtls", "tls.secret=certificates")
    (endpoint,) = rendered["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["cert"]["secret"]["name"] == "certificates"


def test_without_a_secret_the_scrape_has_no_key(objects: Objects) -> None:
    rendered = objects("monitoring.serviceMonitor=true", "auth.readWithoutKey[0]=metrics")
    (endpoint,) = rendered["ServiceMonitor"]["spec"]["endpoints"]
    assert "authorization" not in endpoint


def test_the_rules_are_those_that_promtool_checks(objects: Objects, chart: Path) -> None:
    spec = objects("monitoring.rules=true")["PrometheusRule"]["spec"]
    assert spec == yaml.safe_load((chart / "files" / "prometheus-rules.yaml").read_text())


def test_alerts_link_to_the_runbooks_of_the_operators(objects: Objects) -> None:
    page = "https://wiki.example.com/harmonium"
    rendered = objects("monitoring.rules=true", f"monitoring.runbooks={page}")
    groups = rendered["PrometheusRule"]["spec"]["groups"]
    links = {
        rule["annotations"]["runbook_url"]
        for group in groups
        for rule in group["rules"]
        if "alert" in rule
    }
    assert f"{page}#harmoniumenginedown" in links
    assert all(link.startswith(page) for link in links)


def test_the_dashboard_is_the_one_in_the_repository(
    template: Callable[..., str], chart: Path
) -> None:
    items = yaml.safe_load_all(template("--set", "monitoring.dashboard=true"))
    (found,) = [
        item
        for item in items
        if item and item["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
    ]
    expected = json.loads((chart / "files" / "grafana-dashboard.json").read_text())
    ((name, text),) = found["data"].items()
    assert name == "default-demo-harmonium.json"
    made = json.loads(text)
    assert made.pop("uid").startswith("harmonium-")
    assert made.pop("title") == "Harmonium default-demo-harmonium"
    assert made == {key: expected[key] for key in expected.keys() - {"uid", "title"}}


def test_two_releases_keep_their_dashboards_and_rules_apart(template: Callable[..., str]) -> None:
    flags = [f"--set=monitoring.{name}=true" for name in ("dashboard", "rules", "serviceMonitor")]
    flags.append("--set=auth.open=true")
    made = [
        list(filter(None, yaml.safe_load_all(template(*flags, "--set", f"nameOverride={name}"))))
        for name in ("one", "two")
    ]
    boards = [item["data"] for items in made for item in items if "grafana" in str(item)]
    assert len({name for board in boards for name in board}) == 2
    assert len({json.loads(text)["uid"] for board in boards for text in board.values()}) == 2
    for name, items in zip(("one", "two"), made, strict=True):
        (spec,) = [item["spec"] for item in items if item["kind"] == "PrometheusRule"]
        for rule in (rule for group in spec["groups"] for rule in group["rules"]):
            selected = re.findall(r"harmonium[_:][a-z_:0-9]+(\{[^}]*\})?", rule["expr"])
            own = f'namespace="default",job="demo-{name}"'
            assert selected
            assert all(own in labels for labels in selected), rule["expr"]
