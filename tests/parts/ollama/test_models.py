"""What Ollama's clients are told of the model; the routes that only say what to do; off, and the
second port."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest

from auth.authenticators import ApiKeys
from parts.ollama.launch import LAUNCH
from parts.ollama.serving import SERVING
from profiles.errors import InvalidConstraint
from service.api.about.health import EngineNote
from service.run.listener import listen, url_of
from service.run.server import ApiServer
from service.settings.settings import Settings
from tests import loopback, plain
from tests.parts.ollama.test_chat import heard
from tests.service.conftest import OneAdapter

Fixture = Callable[..., Any]

NAMES = ["gpt-oss-20b:latest", "gpt-oss:20b"]
HI = "<|channel|>final<|message|>Hi.<|return|>"


async def test_the_model_is_listed_by_names_that_every_route_takes(
    make_ollama: Fixture, make_client: Fixture
) -> None:
    client = await make_client(make_ollama(HI))
    models = (await client.get("/api/tags")).json()["models"]
    assert [model["name"] for model in models] == [model["model"] for model in models] == NAMES
    assert len(models[0]["digest"]) == 64
    assert models[0]["details"]["parameter_size"] == "20.9B"
    messages = [{"role": "user", "content": "Hi"}]
    for name in (*NAMES, "gpt-oss-20b"):
        body = {"model": name, "messages": messages}
        for path in ("/api/chat", "/v1/chat/completions"):
            assert (await client.post(path, json=body)).status_code == 200
        shown = (await client.post("/api/show", json={"model": name})).json()
        assert shown["capabilities"] == ["completion", "tools", "thinking"]
    architecture = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{architecture}.context_length"] > 0
    [running] = (await client.get("/api/ps")).json()["models"]
    assert running["name"] == NAMES[0]
    missing = await client.post("/api/show", json={"name": "llama3"})
    assert missing.status_code == 404
    assert "llama3" in missing.json()["error"]


async def test_an_adapter_is_a_model(make_ollama: Fixture, make_client: Fixture) -> None:
    engine, seen = heard()
    client = await make_client(replace(make_ollama(engine=engine), adapters=OneAdapter()))
    models = (await client.get("/api/tags")).json()["models"]
    assert [model["name"] for model in models] == [*NAMES, "french:latest"]
    assert models[0]["digest"] != models[2]["digest"]
    assert models[2]["details"]["parent_model"] == "gpt-oss-20b"
    messages = [{"role": "user", "content": "Hi"}]
    for name in ("french", "french:latest"):
        for path, asked in (("chat", {"messages": messages}), ("generate", {"prompt": "Hi"})):
            body = {"model": name, "stream": False, **asked}
            answer = await client.post(f"/api/{path}", json=body)
            assert (answer.status_code, answer.json()["model"]) == (200, name)
            adapter = seen[-1].adapter
            assert adapter is not None
            assert adapter.name == "french"
        shown = (await client.post("/api/show", json={"model": name})).json()
        assert shown["details"]["parent_model"] == "gpt-oss-20b"


async def test_a_model_whose_engine_sleeps_is_not_loaded(
    make_ollama: Fixture, make_client: Fixture
) -> None:
    async def asleep() -> Literal["asleep"]:
        return "asleep"

    runtime = make_ollama(HI)
    client = await make_client(replace(runtime, parts=(*runtime.parts, EngineNote(asleep))))
    assert (await client.get("/api/ps")).json() == {"models": []}
    assert len((await client.get("/api/tags")).json()["models"]) == 2


@pytest.mark.parametrize(
    ("method", "name"),
    [
        *(("POST", name) for name in ("pull", "push", "create", "copy", "embed", "embeddings")),
        ("DELETE", "delete"),
    ],
)
async def test_what_is_not_for_clients_says_what_to_do(
    make_ollama: Fixture, make_client: Fixture, method: str, name: str
) -> None:
    client = await make_client(make_ollama(HI))
    response = await client.request(method, f"/api/{name}", json={"model": "gpt-oss:20b"})
    assert response.status_code == 400
    assert f"/api/{name} is not supported: " in response.json()["error"]


async def test_off_is_a_404_that_names_the_setting(
    make_runtime: Fixture, make_client: Fixture
) -> None:
    runtime = SERVING.wire(make_runtime(HI), Settings())
    client = await make_client(runtime)
    for method, path in (("GET", "tags"), ("GET", "version"), ("POST", "chat"), ("POST", "pull")):
        response = await client.request(method, f"/api/{path}", json={})
        assert response.status_code == 404
        assert "NIM_OLLAMA_PORT" in response.json()["error"]
    assert "gpt-oss:20b" not in runtime.model.names


async def test_keys_hold_for_these_routes(make_ollama: Fixture, make_client: Fixture) -> None:
    client = await make_client(make_ollama(HI, authenticator=ApiKeys(["a-key-of-the-operators"])))
    for path in ("tags", "version", "ps"):
        response = await client.get(f"/api/{path}")
        assert response.status_code == 401
        assert isinstance(response.json()["error"], str)
    headers = {"Authorization": "Bearer a-key-of-the-operators"}
    assert (await client.get("/api/tags", headers=headers)).status_code == 200


async def test_the_second_port_serves_all_routes_and_is_shared(make_runtime: Fixture) -> None:
    """Two workers listen on it, each for itself."""
    async with contextlib.AsyncExitStack() as stack:
        holder = stack.enter_context(listen(loopback.ADDRESS, 0))
        port = holder.getsockname()[1]
        settings = Settings.model_validate({"ollama_port": port})
        with pytest.raises(InvalidConstraint, match="NIM_OLLAMA_PORT"):
            LAUNCH.check_server(settings)
        holder.close()
        LAUNCH.check_server(settings)
        for _ in range(2):
            runtime = SERVING.wire(make_runtime(HI), settings)
            await runtime.engine.start()
            stack.push_async_callback(runtime.engine.stop)
            own = stack.enter_context(listen(loopback.ADDRESS, 0))
            await stack.enter_async_context(ApiServer(runtime).listening(own))
            async with plain.AsyncClient() as client:
                for url in (f"http://{loopback.IN_URL}:{port}", url_of(own)):
                    for path in ("/api/tags", "/v1/models"):
                        assert (await client.get(f"{url}{path}")).status_code == 200
