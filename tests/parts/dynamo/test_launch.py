"""Replicas hand K/V over, each at ports of its own."""

from __future__ import annotations

from typing import Any

import pytest

from parts.dynamo.handover.spec import KvHandover
from profiles.errors import InvalidConstraint
from profiles.hardware.written import parse_hardware
from service.run import startup
from service.run.launching import check_server, replica_spec
from service.run.startup import prepare
from service.settings.settings import load
from tests.service.run.conftest import cache, default_cache, launch, machine

__all__ = ["cache", "default_cache", "machine"]

pytestmark = pytest.mark.usefixtures("machine", "cache")

ROLE: dict[str, Any] = {"kv_handover_secret": "q7Vn2xPz81LdRk0w", "dynamo_role": "prefill"}


def test_each_replica_hands_kv_over_at_a_port_of_its_own() -> None:
    settings = load({"model_name": "nano", **ROLE, "kv_handover_endpoint": "tcp://[::1]:6000"})
    spec = prepare(settings).spec
    assert "dynamo" not in replica_spec(spec, load({"model_name": "nano"}), 0).parts
    secret = ROLE["kv_handover_secret"]
    assert [KvHandover.of(replica_spec(spec, settings, number)) for number in (0, 2)] == [
        KvHandover("prefill", secret, "tcp://[::1]:6000"),
        KvHandover("prefill", secret, "tcp://[::1]:6002"),
    ]
    decode = {
        **ROLE,
        "dynamo_role": "decode",
        "kv_handover_timeout_s": 2.5,
        "kv_handover_transport": "nixl",
    }
    found = KvHandover.of(replica_spec(spec, load({"model_name": "nano", **decode}), 1))
    assert found == KvHandover("decode", secret, None, 2.5, "nixl")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({**ROLE, "tags_selector": "engine=vllm"}, "ROLE is prefill, and .* uses engine vllm"),
        (
            {**ROLE, "kv_handover_endpoint": "tcp://10.0.0.7:65535"},
            "2 replicas need as many ports",
        ),
    ],
)
def test_what_an_engine_or_two_replicas_cannot_do_is_refused(
    settings: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "visible_hardware", lambda: parse_hardware("h200x2"))
    wish = {"model_name": "gpt-oss-20b", "tags_selector": "engine=native", "replicas": 2}
    with pytest.raises(InvalidConstraint, match=reason):
        launch(**{**wish, **settings})


def test_a_server_has_no_role() -> None:
    with pytest.raises(InvalidConstraint, match="for `harmonium dynamo-worker`"):
        check_server(load(ROLE))
    check_server(load({}))
