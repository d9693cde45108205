"""NIM_SLEEP_IDLE_S: what is started, and the routes of a server whose engine may sleep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from auth.authenticators import ApiKeys
from engines.fleet import Fleet
from engines.process.supervisor import EngineSupervisor
from engines.recovery.crash_records import CrashRecords
from engines.recovery.guarded import GuardedEngine
from engines.spec import EngineSpec
from parts.sleep.launch import PROXY
from parts.sleep.proxy.about import Given
from parts.sleep.serving import SERVING
from service.run.launching import replica_spec
from service.settings.settings import Settings
from tests.service.conftest import chat_body, harmony_ids, make_client, make_runtime

__all__ = ["chat_body", "harmony_ids", "make_client", "make_runtime"]

Fixture = Callable[..., Any]

SLEEPY = Settings.model_validate({"sleep_idle_s": 3600})
SPEC = EngineSpec("native", {"max_num_waiting": 7}, {"max_model_len": 64}, num_devices=2)


def test_the_engine_is_started_by_the_proxy_as_it_would_have_been() -> None:
    assert replica_spec(SPEC, Settings(), 0) == SPEC
    spec = replica_spec(SPEC, SLEEPY, 0)
    assert spec.engine == PROXY
    sent = msgspec.json.decode(msgspec.json.encode(spec), type=EngineSpec)
    given = msgspec.convert(sent.parts["sleep"], Given)
    assert (given.spec, given.idle_s) == (SPEC, 3600)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/sleep"), ("POST", "/wake_up"), ("GET", "/is_sleeping")]
)
async def test_the_routes_are_for_operators_and_off_by_default(
    make_runtime: Fixture, make_client: Fixture, method: str, path: str
) -> None:
    client = await make_client(SERVING.wire(make_runtime("<|return|>"), Settings()))
    response = await client.request(method, path)
    assert response.status_code == 404
    assert "NIM_SLEEP_IDLE_S" in response.json()["error"]["message"]
    authenticator = ApiKeys(["a-key-of-the-operators"])
    client = await make_client(make_runtime("<|return|>", authenticator=authenticator))
    assert (await client.request(method, path)).status_code == 401


@pytest.mark.heavy
async def test_a_server_sleeps_stays_ready_and_answers(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture, harmony_ids: Fixture
) -> None:
    """With the processes that a server has: the proxy, and the engine that it starts."""
    script = harmony_ids("<|channel|>final<|message|>Good morning.<|return|>")
    given = {"spec": msgspec.to_builtins(EngineSpec("tests.fake", {"script": script}))}
    given |= {"idle_s": 3600.0, "step_timeout_s": 60.0}
    supervisor = EngineSupervisor(EngineSpec(PROXY, parts={"sleep": given}))
    await supervisor.start()
    try:
        client = supervisor.client()
        engine = GuardedEngine(Fleet([client]), CrashRecords(client.folder / "suspects"))
        runtime = SERVING.wire(make_runtime(engine=engine), SLEEPY)
        http = await make_client(runtime)
        assert (await http.get("/is_sleeping")).json() == {"is_sleeping": False}
        assert "engine" not in (await http.get("/v1/health/ready")).json()
        for _ in range(2):
            assert (await http.post("/sleep")).status_code == 200
            assert (await http.get("/is_sleeping")).json() == {"is_sleeping": True}
            ready = await http.get("/v1/health/ready")
            assert (ready.status_code, ready.json()["engine"]) == (200, "asleep")
            assert "harmonium_engine_asleep" in (await http.get("/metrics")).text
            assert (await http.get("/v1/models")).status_code == 200
            assert (await http.get("/is_sleeping")).json() == {"is_sleeping": True}
            answer = (await http.post("/v1/chat/completions", json=chat_body())).json()
            assert answer["choices"][0]["message"]["content"] == "Good morning."
            assert (await http.get("/is_sleeping")).json() == {"is_sleeping": False}
        assert (await http.post("/sleep")).status_code == 200
        assert (await http.post("/wake_up")).status_code == 200
        assert (await http.get("/is_sleeping")).json() == {"is_sleeping": False}
    finally:
        await supervisor.stop(0.0, 5.0)
