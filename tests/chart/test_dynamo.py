"""The front and the workers of a Dynamo deployment."""

from __future__ import annotations

import pytest

from tests.chart.rendered import Objects, container_of

pytestmark = pytest.mark.chart

DYNAMO = (
    "dynamo.etcd=http://etcd:2379",
    "networkPolicy.enabled=true",
    "model=gpt-oss-20b",
    "dynamo.tlsSecret=pair",
    "dynamo.tlsServerName=harmonium",
)


def test_only_front_and_workers_reach_the_ports_of_dynamo(objects: Objects) -> None:
    front = objects(*DYNAMO, "dynamo.role=front")
    worker = objects(*DYNAMO, "dynamo.role=worker", "gpus=1")
    rules = [each["NetworkPolicy"]["spec"]["ingress"] for each in (front, worker)]
    api, peers = rules[0]
    assert [port["port"] for port in api["ports"]] == [8000]
    assert rules[1] == [peers], "a worker has no API"
    (peer,) = peers["from"]
    for each in (front, worker):
        labels = each["Deployment"]["spec"]["template"]["metadata"]["labels"]
        assert peer["podSelector"]["matchLabels"].items() <= labels.items()
        given = {item["name"]: item.get("value") for item in container_of(each)["env"]}
        assert given["DYN_TCP_RPC_HOST"] == given["DYN_TCP_RESPONSE_STREAM_HOST"] == "$(POD_IP)"
        assert given["DYN_TCP_TLS_CLIENT_CA_CERT_PATH"] == "/etc/harmonium/dynamo/ca.crt"


def test_a_front_needs_as_little_as_nano(objects: Objects) -> None:
    container = container_of(objects(*DYNAMO, "dynamo.role=front"))
    assert container["resources"]["limits"] == {"memory": "4Gi"}
    assert {"name": "NIM_MODEL_NAME", "value": "gpt-oss-20b"} in container["env"]


def test_a_worker_has_no_service_and_is_not_killed_while_its_engine_starts_again(
    objects: Objects,
) -> None:
    rendered = objects(*DYNAMO, "dynamo.role=worker", "gpus=1", "replicaCount=2")
    assert not {"Service", "Pod"} & set(rendered)
    container = container_of(rendered)
    assert container["args"] == ["dynamo-worker"]
    assert "livenessProbe" not in container
    given = {item["name"]: item.get("value") for item in container["env"]}
    (port,) = container["ports"]
    assert given["DYN_SYSTEM_PORT"] == str(port["containerPort"])
    for kind in ("startupProbe", "readinessProbe"):
        assert container[kind]["httpGet"] == {"path": "/health", "port": port["name"]}


def test_decode_workers_reach_prefill_workers_where_these_hand_over(objects: Objects) -> None:
    prefill, decode = (
        objects(*DYNAMO, f"dynamo.role={role}", "dynamo.handoverSecret=kv", "gpus=1")
        for role in ("prefill", "decode")
    )
    for role, each in (("prefill", prefill), ("decode", decode)):
        assert not {"Service", "Pod"} & set(each)
        container = container_of(each)
        assert container["args"] == ["dynamo-worker"]
        given = {item["name"]: item for item in container["env"]}
        assert given["NIM_DYNAMO_ROLE"]["value"] == role
        secret = given["NIM_KV_HANDOVER_SECRET"]["valueFrom"]["secretKeyRef"]
        assert secret == {"name": "kv", "key": "secret"}
        assert given["NIM_DYNAMO_ENDPOINT"]["value"] == "harmonium.backend.generate"
        # POD_IP is above what names it: Kubernetes leaves other references as they are.
        names = [item["name"] for item in container["env"]]
        assert names.index("POD_IP") < names.index("NIM_DYNAMO_ROLE")
    endpoint = {item["name"]: item.get("value") for item in container_of(prefill)["env"]}
    ports = {port["name"]: port["containerPort"] for port in container_of(prefill)["ports"]}
    assert endpoint["NIM_KV_HANDOVER_ENDPOINT"] == f"tcp://$(POD_IP):{ports['handover']}"
    assert "NIM_KV_HANDOVER_ENDPOINT" not in {item["name"] for item in container_of(decode)["env"]}
    (ingress,) = prefill["NetworkPolicy"]["spec"]["ingress"]
    assert "ports" not in ingress, "each port, that of the handover too"
    (peer,) = ingress["from"]
    labels = decode["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    out = [rule["to"] for rule in decode["NetworkPolicy"]["spec"]["egress"] if "to" in rule]
    assert [peer] in out
