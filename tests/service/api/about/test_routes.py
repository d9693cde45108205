"""The routes about the service, and what every route has in common: ids, keys, errors."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from auth.authenticators import ApiKeys
from profiles.hardware.gpus import LOADER
from service.run.server import create_app
from service.runtime import ServedProfile
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

PATH = "/v1/chat/completions"
SCRIPT = "<|channel|>final<|message|>Hi<|return|>"


@pytest.fixture
async def client(make_runtime: Fixture, make_client: Fixture) -> Any:
    return await make_client(make_runtime(SCRIPT))


async def test_the_served_model_is_listed_with_its_context(client: Any) -> None:
    [card] = (await client.get("/v1/models")).json()["data"]
    assert card["id"] == "gpt-oss-20b"
    assert card["object"] == "model"
    assert card["root"] == "openai/gpt-oss-20b"
    assert card["max_model_len"] == 131_072
    assert (await client.get("/v1/models/gpt-oss-20b")).json() == card


async def test_codex_gets_its_list_of_models(make_runtime: Fixture, make_client: Fixture) -> None:
    """It asks for one where its provider has a command for keys, and warns without."""
    client = await make_client(make_runtime("<|return|>"))
    plain = (await client.get("/v1/models")).json()
    assert "models" not in plain
    listed = (await client.get("/v1/models?client_version=0.171.0")).json()
    assert listed["data"] == plain["data"]
    [model] = listed["models"]
    length = plain["data"][0]["max_model_len"]
    assert (model["slug"], model["context_window"]) == ("gpt-oss-20b", length)
    efforts = [level["effort"] for level in model["supported_reasoning_levels"]]
    assert efforts == ["low", "medium", "high"]
    # Without any of these, Codex 0.171 refuses the list.
    needed = {"slug", "display_name", "supported_reasoning_levels", "shell_type", "visibility"}
    needed |= {"supported_in_api", "priority", "support_verbosity", "truncation_policy"}
    needed |= {"experimental_supported_tools", "base_instructions"}
    assert needed <= model.keys()


@pytest.mark.parametrize("name", ["gpt-oss-20b", "mine", "openai/gpt-oss-20b"])
async def test_every_name_is_served_and_the_first_is_answered(
    make_runtime: Fixture, make_client: Fixture, name: str
) -> None:
    runtime = make_runtime(SCRIPT)
    model = replace(runtime.model, more_names=("mine",), aliases=("openai/gpt-oss-20b",))
    client = await make_client(replace(runtime, model=model))
    listed = (await client.get("/v1/models")).json()["data"]
    assert [card["id"] for card in listed] == ["gpt-oss-20b", "mine"]
    card = (await client.get(f"/v1/models/{name}")).json()
    assert (card["id"], card["max_model_len"]) == (name, 131_072)
    message = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
    response = await client.post("/v1/chat/completions", json={"model": name, **message})
    assert response.json()["model"] == "gpt-oss-20b", response.text
    metrics = (await client.get("/v1/metrics")).text
    assert {*re.findall(r'[{,]model="([^"]*)"', metrics)} == {"gpt-oss-20b"}


async def test_another_model_is_a_404(client: Any) -> None:
    response = await client.get("/v1/models/openai/gpt-4")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


async def test_health_version_and_metadata(client: Any) -> None:
    ready = await client.get("/v1/health/ready")
    assert ready.json() == {"object": "health.response", "message": "Service is ready."}
    assert (await client.get("/v1/health/live")).status_code == 200
    assert (await client.get("/v1/version")).json() == {"release": version("harmonium"), "api": "1"}
    assert (await client.get("/version")).json() == {"version": version("harmonium")}
    assert (await client.post("/ping")).status_code == 200
    assert (await client.get("/v1/metadata")).json()["selectedModelProfileId"] == "0" * 64


async def test_the_load_is_what_runs_and_waits(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture
) -> None:
    engine = FakeEngine(FakeOptions(script=(24912,), step_s=0.001))  # never ends
    client = await make_client(make_runtime(engine=engine))

    async def load_is(number: int) -> None:
        async with asyncio.timeout(20):
            while (await client.get("/load")).json() != {"server_load": number}:
                await asyncio.sleep(0.001)

    await load_is(0)
    asking = [asyncio.create_task(client.post(PATH, json=chat_body())) for _ in range(2)]
    await load_is(2)
    for task in asking:
        task.cancel()
    await load_is(0)


async def test_metadata_says_what_was_chosen_and_why(
    make_runtime: Fixture, make_client: Fixture
) -> None:
    runtime = make_runtime(SCRIPT)
    told = ServedProfile(
        "native-cpu", "native", "fp32", "balanced", "cpu", 1, 1, 4096, "untuned", "by us", "the one"
    )
    model = replace(runtime.model, description="small", license="Apache-2.0", profile=told)
    client = await make_client(replace(runtime, model=model))
    found = (await client.get("/v1/metadata")).json()
    assert found["licenseInfo"]["name"] == "Apache-2.0"
    assert found["description"] == "small"
    assert found["profile"] == asdict(told) | {"notes": []}


async def test_the_engine_can_be_killed_only_where_the_operator_allows_it(
    make_runtime: Fixture, make_client: Fixture
) -> None:
    runtime = make_runtime(SCRIPT)
    client = await make_client(runtime)
    refused = await client.post("/v1/engine/kill")
    assert refused.status_code == 404
    assert "NIM_ALLOW_ENGINE_KILL" in refused.json()["error"]["message"]
    client = await make_client(replace(runtime, kill_engine=lambda: 1))
    assert (await client.get("/v1/metadata")).json()["may_kill_engine"] is True
    killed = await client.post("/v1/engine/kill")
    assert (killed.status_code, killed.json()) == (202, {"killed": 1})


async def test_metadata_names_the_files_and_the_licence_has_its_text(
    make_runtime: Fixture, make_client: Fixture
) -> None:
    runtime = make_runtime(SCRIPT)
    model = replace(
        runtime.model,
        license="Apache-2.0",
        assets=("hf://a/b@c config.json sha256:00",),
        repository_override="s3://bucket",
    )
    client = await make_client(replace(runtime, model=model))
    metadata = (await client.get("/v1/metadata")).json()
    assert metadata["assetInfo"] == ["hf://a/b@c config.json sha256:00"]
    assert metadata["repository_override"] == "s3://bucket"
    license = (await client.get("/v1/license")).json()
    assert license == metadata["licenseInfo"]
    short = (await client.get("/v1/metadata?license_text=false")).json()
    assert short == metadata | {"licenseInfo": license | {"content": None}}
    assert (license["name"], license["type"]) == ("Apache-2.0", "file")
    assert license["sha"] == hashlib.sha1(license["content"].encode()).hexdigest()
    assert license["size"] == len(license["content"]) > 10_000
    assert Path(license["path"]).read_text() == license["content"]


async def test_the_manifest_is_that_of_a_nim(client: Any) -> None:
    answer = (await client.get("/v1/manifest")).json()
    assert answer["repository_override"] == ""
    manifest = yaml.load(answer["manifest_file"], Loader=LOADER)
    assert manifest["schema_version"] == "2.0.0"


async def test_a_dead_engine_is_alive_but_not_ready(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture
) -> None:
    runtime = make_runtime(SCRIPT)
    client = await make_client(runtime)
    await runtime.engine.stop()
    ready = await client.get("/v1/health/ready")
    assert ready.status_code == 503
    assert "not running" in ready.json()["error"]["message"]
    assert (await client.get("/v1/health/live")).status_code == 200
    refused = await client.post(PATH, json=chat_body())
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "engine_dead"
    assert refused.headers["retry-after"] == "1"


async def test_an_engine_that_hangs_is_not_ready(
    make_runtime: Fixture, make_client: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime(SCRIPT)
    client = await make_client(runtime)

    async def hang() -> None:
        raise TimeoutError

    monkeypatch.setattr(runtime.engine, "check_health", hang)
    assert (await client.get("/v1/health/ready")).status_code == 503


@pytest.mark.parametrize("path", ["/v1/models", "/v1/health/ready", "/health", "/ping"])
async def test_nothing_is_served_before_the_engine_has_started(
    make_runtime: Fixture, path: str
) -> None:
    runtime = make_runtime(SCRIPT)
    runtime.lifecycle.phase = type(runtime.lifecycle.phase)("starting")
    transport = httpx2.ASGITransport(create_app(runtime))
    async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
        response = await client.get(path)
        assert response.status_code == 503
        assert "loading" in response.json()["error"]["message"]
        assert (await client.get("/v1/health/live")).status_code == 200


async def test_a_full_queue_is_a_429(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture
) -> None:
    engine = FakeEngine(FakeOptions(script=(1,), max_num_waiting=0))
    client = await make_client(make_runtime(engine=engine))
    response = await client.post(PATH, json=chat_body())
    assert response.status_code == 429
    assert response.json()["error"]["code"] == "queue_full"
    assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "route_not_found"),
        ("GET", PATH, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ],
)
async def test_routing_errors_have_the_one_shape(
    client: Any, method: str, path: str, status: int, code: str
) -> None:
    response = await client.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert response.json()["error"]["code"] == code
    if status == 405:
        assert response.headers["allow"]


@pytest.mark.parametrize("path", ["/v1/health/ready", "/v1/models", "/metrics"])
async def test_head_is_get_without_its_body(client: Any, path: str) -> None:
    got, headed = await client.get(path), await client.head(path)
    assert headed.status_code == got.status_code == 200
    assert headed.content == b""
    assert {*headed.headers} == {*got.headers}
    assert headed.headers["content-type"] == got.headers["content-type"]


async def test_an_unforeseen_error_is_a_500_without_its_words(
    make_runtime: Fixture,
    make_client: Fixture,
    chat_body: Fixture,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    runtime = make_runtime(SCRIPT)
    client = await make_client(runtime)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(runtime.engine, "generate", fail)
    response = await client.post(PATH, json=chat_body(), headers={"X-Request-Id": "mine"})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text
    assert response.headers["x-request-id"] == "mine"
    assert "mine" in caplog.text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(("path", "status"), [("/v1/models", 200), ("/nowhere", 404)])
async def test_a_request_id_comes_back_on_every_answer(client: Any, path: str, status: int) -> None:
    response = await client.get(path, headers={"X-Request-Id": "abc-1"})
    assert response.status_code == status
    assert response.headers["x-request-id"] == "abc-1"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert 0 <= int(response.headers["openai-processing-ms"]) < 60_000
    made = [(await client.get(path)).headers["x-request-id"] for _ in range(2)]
    assert made[0] != made[1]


@pytest.mark.parametrize("given", ["", "two words", "x" * 129, 'quote"', "a;b"])
async def test_a_malformed_request_id_is_refused(client: Any, given: str) -> None:
    response = await client.get("/v1/models", headers={"X-Request-Id": given})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "X-Request-Id"
    assert response.headers["x-request-id"] != given


async def test_the_log_has_ids_and_counts_but_no_text(
    client: Any, chat_body: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    body = chat_body(messages=[{"role": "user", "content": "my private words"}])
    await client.post(PATH, json=body, headers={"X-Request-Id": "logged-1"})
    await client.post(PATH, json=body | {"my private words": 1}, headers={"X-Request-Id": "bad-1"})
    good, bad = (line for line in caplog.messages if "logged-1" in line or "bad-1" in line)
    assert re.search(r"POST .* -> 200 in \d+ ms, request logged-1, \d+ prompt tokens", good)
    assert re.search(r"POST .* -> 400 \(unknown_parameter\) in \d+ ms, request bad-1", bad)
    assert "private" not in caplog.text


class TestKeys:
    """With keys configured, nothing but health and version is open."""

    @pytest.fixture
    async def locked(self, make_runtime: Fixture, make_client: Fixture) -> Any:
        return await make_client(make_runtime(SCRIPT, authenticator=ApiKeys(["right"])))

    @pytest.mark.parametrize(
        "headers",
        [
            {"Authorization": "Bearer right"},
            {"authorization": "bearer right"},
            {"X-API-Key": "right"},
            {"Authorization": "Basic something", "X-API-Key": "right"},
        ],
    )
    async def test_a_key_opens(self, locked: Any, headers: dict[str, str]) -> None:
        assert (await locked.get("/v1/models", headers=headers)).status_code == 200

    @pytest.mark.parametrize(
        ("headers", "code"),
        [
            ({}, "missing_api_key"),
            ({"Authorization": "Basic right"}, "missing_api_key"),
            ({"Authorization": "Bearer"}, "missing_api_key"),
            ({"Authorization": "Bearer wrong"}, "invalid_api_key"),
            ({"X-API-Key": "wrong"}, "invalid_api_key"),
            ({"Authorization": "Bearer wrong", "X-API-Key": "right"}, "invalid_api_key"),
        ],
    )
    @pytest.mark.parametrize("path", ["/v1/models", "/v1/metrics", "/nowhere", PATH])
    async def test_no_key_or_a_wrong_one_is_a_401(
        self, locked: Any, headers: dict[str, str], code: str, path: str
    ) -> None:
        response = await locked.get(path, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == code
        challenge = "Bearer" if code == "missing_api_key" else 'Bearer error="invalid_token"'
        assert response.headers["www-authenticate"] == challenge
        assert response.headers["x-request-id"]

    async def test_the_log_tells_callers_apart_without_their_keys(
        self, locked: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        await locked.get("/v1/models", headers={"X-API-Key": "right"})
        assert re.search(r"request \S+ of key-[0-9a-f]{8}\n", caplog.text)
        assert "right" not in caplog.text

    @pytest.mark.parametrize(
        "path",
        ["/v1/health/live", "/v1/health/ready", "/health", "/ping", "/v1/version", "/version"],
    )
    async def test_probes_stay_open(self, locked: Any, path: str) -> None:
        assert (await locked.get(path)).status_code == 200
