"""Replicas publish KV events, each at ports of its own."""

from __future__ import annotations

from typing import Any

import pytest

from engines.spec import EngineSpec
from parts.kv_events.events import KvEvents
from parts.kv_events.settings import KvEventSettings
from profiles.errors import InvalidConstraint
from profiles.hardware.written import parse_hardware
from service.run import startup
from service.run.launching import replica_spec
from service.run.startup import fallback, prepare
from service.settings.errors import SettingsError
from service.settings.settings import Settings, load
from tests.service.run.conftest import cache, default_cache, launch, machine

__all__ = ["cache", "default_cache", "machine"]
pytestmark = pytest.mark.usefixtures("machine", "cache")

EVENTS: dict[str, Any] = {
    "enable_kv_cache_events": True,
    "kv_events_endpoint": "tcp://10.0.0.7:5557",
    "kv_events_replay_endpoint": "tcp://10.0.0.7:5600",
    "kv_events_topic": "kv@10.0.0.7@nano",
}


def test_each_replica_publishes_kv_events_on_ports_of_its_own() -> None:
    settings = load({"model_name": "nano", **EVENTS})
    spec = prepare(settings).spec
    assert replica_spec(spec, load({"model_name": "nano"}), 0).parts == {}
    assert [given(spec, settings, number) for number in (0, 2)] == [
        KvEvents("tcp://10.0.0.7:5557", "tcp://10.0.0.7:5600", "kv@10.0.0.7@nano", 0),
        KvEvents("tcp://10.0.0.7:5559", "tcp://10.0.0.7:5602", "kv@10.0.0.7@nano", 2),
    ]
    usual = load({"model_name": "nano", "enable_kv_cache_events": True})
    assert given(spec, usual, 1) == KvEvents("tcp://127.0.0.1:5558", rank=1)


def given(spec: EngineSpec, settings: Settings, number: int) -> KvEvents:
    return KvEvents(**replica_spec(spec, settings, number).parts["kv_events"])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({**EVENTS, "tags_selector": "engine=vllm"}, "EVENTS is set, and .* uses engine vllm"),
        (
            {**EVENTS, "kv_events_replay_endpoint": "tcp://127.0.0.1:5558"},
            "the two must be 2 or more apart",
        ),
        (
            {**EVENTS, "kv_events_endpoint": "tcp://10.0.0.7:65535"},
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


def test_no_engine_without_kv_events_replaces_one_that_has_them() -> None:
    without = load({"model_name": "gpt-oss-20b"})
    assert fallback(without, prepare(without), "why") is not None
    publishing = load({"model_name": "gpt-oss-20b", **EVENTS})
    assert fallback(publishing, prepare(publishing), "why") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("NIM_KV_EVENTS_ENDPOINT", "tcp://127.0.0.1:6000"), ("NIM_KV_EVENTS_TOPIC", "kv@pod@nano")],
)
def test_settings_without_effect_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match="NIM_ENABLE_KV_CACHE_EVENTS=1"):
        load()


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("tcp://*:5557", "with an IP address"),
        ("tcp://0.0.0.0:5557", "every address of the machine"),
        ("tcp://[::]:5557", "every address of the machine"),
        ("tcp://[::ffff:0.0.0.0]:5557", "every address of the machine"),
        ("tcp://host:5557", "with an IP address"),
        ("tcp://10.0.0.256:5557", "does not appear to be an IPv4"),
        ("ipc:///tmp/events", "with an IP address"),
        ("tcp://10.0.0.7:0", "the port must be"),
        ("tcp://10.0.0.7:65536", "the port must be"),
    ],
)
def test_kv_events_are_published_on_one_named_address_alone(endpoint: str, reason: str) -> None:
    for name in ("kv_events_endpoint", "kv_events_replay_endpoint"):
        with pytest.raises(SettingsError, match=f"(?s)NIM_.*{reason}|--kv.*{reason}"):
            load({"enable_kv_cache_events": True, name: endpoint})
    taken = {"enable_kv_cache_events": True, "kv_events_endpoint": "tcp://[fd00::7]:5557"}
    assert load(taken).of(KvEventSettings).kv_events_endpoint == "tcp://[fd00::7]:5557"
    # As the chart has it on a pod with an IPv6 address.
    bare = taken | {"kv_events_endpoint": "tcp://fd00::7:5557"}
    assert load(bare).of(KvEventSettings).kv_events_endpoint == "tcp://[fd00::7]:5557"
