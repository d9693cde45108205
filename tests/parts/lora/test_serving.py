"""Adapters as clients and operators meet them, around a scripted engine."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auth.base import Credentials, Principal, Scope
from engines.base import Adapter, EngineRequest, SamplingParams
from engines.errors import InvalidRequest
from parts.lora.registry import AdapterFolder
from parts.lora.serving import SERVING, ServedAdapters, with_adapters
from parts.lora.settings import LoraSettings
from service.runtime import Runtime
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.parts.lora.conftest import write_plain
from tests.profiles.hub import bucket_of, hub_of, serving

Fixture = Any
HELLO = "<|channel|>final<|message|>Hello!<|return|>"
MODEL = "gpt-oss-20b"


class Listening(FakeEngine):
    """A scripted engine that keeps what it was asked, and can load no adapter named `wrong`."""

    asked: list[EngineRequest]

    async def open(self, request: EngineRequest, receive: Any) -> Any:
        self.asked = [*getattr(self, "asked", ()), request]
        if request.adapter is not None and request.adapter.name == "wrong":
            raise InvalidRequest("the adapter 'wrong' has shapes of another model")
        return await super().open(request, receive)


class Callers:
    """A credential is the model that its key may use, `all` or `root`."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        name = credentials.value
        scopes = frozenset(Scope) if name == "root" else frozenset({Scope.MODELS, Scope.INFERENCE})
        models = None if name in ("all", "root") else (name,)
        return Principal(f"key-{name}", scopes=scopes, models=models)


@pytest.fixture
def serve(make_runtime: Fixture, source: Path, harmony_ids: Fixture) -> Callable[..., Runtime]:
    def made(cache: Path | None = None, **options: Any) -> Runtime:
        engine = Listening(FakeOptions(scripts=(harmony_ids(HELLO),)))
        own = LoraSettings(peft_source=source)
        return with_adapters(make_runtime(engine=engine, **options), own, cache)

    return made


def as_(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


def listed(answer: Any) -> dict[str, str | None]:
    return {card["id"]: card["parent"] for card in answer.json()["data"]}


async def test_a_request_names_an_adapter_in_model(
    serve: Fixture, make_client: Fixture, chat_body: Fixture, source: Path
) -> None:
    runtime = serve()
    client = await make_client(runtime)
    models = await client.get("/v1/models")
    assert listed(models) == {MODEL: None, "french": MODEL, "law": MODEL}
    card = (await client.get("/v1/models/french")).json()
    assert card["root"] == str(source / "french")
    for model in ("french", "law", MODEL, None):
        answer = await client.post("/v1/chat/completions", json=chat_body(model=model))
        assert answer.json()["model"] == (model or MODEL)
    french, law, plain, unnamed = runtime.engine.asked
    assert french.adapter is not None
    assert (french.adapter.name, french.adapter.path) == ("french", str(source / "french"))
    assert law.adapter is not None
    assert plain.adapter is unnamed.adapter is None
    # Nothing that one has cached is found by another.
    assert len({each.cache_salt for each in (french, law, plain)}) == 3


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/responses", {"input": "Hi"}),
    ],
)
async def test_every_family_has_adapters(
    serve: Fixture, make_client: Fixture, path: str, body: dict[str, Any]
) -> None:
    runtime = serve()
    client = await make_client(runtime)
    answer = await client.post(path, json=body | {"model": "french"})
    if answer.status_code == 404 and "route_not_found" in answer.text:
        pytest.skip(f"the part with {path} was removed")
    assert (answer.status_code, answer.json()["model"]) == (200, "french")
    assert runtime.engine.asked[-1].adapter.name == "french"


async def test_an_unknown_adapter_is_an_unknown_model(
    serve: Fixture, make_client: Fixture, chat_body: Fixture
) -> None:
    client = await make_client(serve())
    answer = await client.post("/v1/chat/completions", json=chat_body(model="german"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert answer.json()["error"]["param"] == "model"


async def test_a_key_may_have_single_adapters(
    serve: Fixture, make_client: Fixture, chat_body: Fixture
) -> None:
    client = await make_client(serve(authenticator=Callers()))

    async def status(key: str, model: str | None) -> int:
        body = chat_body(model=model)
        answer = await client.post("/v1/chat/completions", json=body, headers=as_(key))
        return int(answer.status_code)

    assert [await status("french", each) for each in ("french", "law", MODEL, None)] == [
        200,
        403,
        403,
        403,
    ]
    assert [await status(MODEL, each) for each in ("french", MODEL)] == [403, 200]
    assert await status("all", "law") == 200
    assert listed(await client.get("/v1/models", headers=as_("french"))) == {"french": MODEL}
    load = {"lora_name": "x", "lora_path": "french"}
    for key, expected in (("all", 403), ("root", 200)):
        answer = await client.post("/v1/load_lora_adapter", json=load, headers=as_(key))
        assert answer.status_code == expected


async def test_adapters_are_loaded_and_unloaded(
    serve: Fixture, make_client: Fixture, chat_body: Fixture, source: Path
) -> None:
    runtime = serve()
    client = await make_client(runtime)
    write_plain(source / "german")
    load = {"lora_name": "german", "lora_path": str(source / "german"), "is_3d_lora_weight": True}
    answer = await client.post("/v1/load_lora_adapter", json=load)
    assert answer.text == "Success: LoRA adapter 'german' added successfully."
    assert runtime.engine.asked[-1].adapter.name == "german"  # the engine has tried it
    again = await client.post("/v1/load_lora_adapter", json=load)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "adapter_exists")
    before = runtime.adapters.get("german").key
    write_plain(source / "german", rank=8)
    inplace = await client.post("/v1/load_lora_adapter", json=load | {"load_inplace": True})
    assert inplace.status_code == 200
    assert runtime.adapters.get("german").key != before

    gone = await client.post("/v1/unload_lora_adapter", json={"lora_name": "german"})
    assert gone.text == "Success: LoRA adapter 'german' removed successfully."
    answer = await client.post("/v1/chat/completions", json=chat_body(model="german"))
    assert answer.status_code == 404
    again = await client.post("/v1/unload_lora_adapter", json={"lora_name": "german"})
    assert (again.status_code, again.json()["error"]["code"]) == (404, "adapter_not_found")


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("nowhere", 404, "there is no such folder"),
        ("../elsewhere", 400, "not below NIM_PEFT_SOURCE"),
        ("/etc", 400, "not below NIM_PEFT_SOURCE"),
        ("link", 400, "not below NIM_PEFT_SOURCE"),
        (".", 400, "not below NIM_PEFT_SOURCE"),
        ("hf://org/name", 400, "NIM_DISABLE_MODEL_DOWNLOAD forbids it; put the adapter into"),
        ("high", 400, "q_proj.lora_A.weight has rank 64; at most 32"),
        ("wrong", 400, "shapes of another model"),
    ],
)
async def test_what_cannot_be_loaded_is_refused_and_not_served(
    serve: Fixture, make_client: Fixture, source: Path, path: str, status: int, said: str
) -> None:
    runtime = serve()
    client = await make_client(runtime)
    write_plain(source.parent / "elsewhere")
    (source / "link").symlink_to(source.parent / "elsewhere")
    write_plain(source / "high", rank=64)
    write_plain(source / "wrong")
    name = "wrong" if path == "wrong" else "new"
    body = {"lora_name": name, "lora_path": path}
    answer = await client.post("/v1/load_lora_adapter", json=body)
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "lora_path"
    assert runtime.adapters.get(name) is None


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, bytes]:
    """What PEFT saves of an adapter, and others' files beside it."""
    folder = write_plain(tmp_path / "saved")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return {**files, "README.md": b"#", "adapter_model.bin": b"pickle"}


async def load(client: Any, path: str, **more: Any) -> tuple[int, str]:
    body = {"lora_name": "new", "lora_path": path, **more}
    answer = await client.post("/v1/load_lora_adapter", json=body)
    return answer.status_code, answer.text


async def test_an_adapter_comes_from_the_hub(
    serve: Fixture, make_client: Fixture, chat_body: Fixture, saved: dict[str, bytes],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    client = await make_client(serve(cache=tmp_path / "cache"))
    with serving({}) as hub:
        hub_of(hub, monkeypatch, saved)
        assert (await load(client, "hf://acme/tuned"))[0] == 200
        [folder] = (tmp_path / "cache/adapters").glob("tuned-*")
        names = ["adapter_config.json", "adapter_model.safetensors"]
        assert sorted(path.name for path in folder.iterdir() if path.name[0] != ".") == names
        assert all((folder / name).read_bytes() == saved[name] for name in names)
        asked = len(hub.asked)
        assert (await load(client, "hf://acme/tuned", load_inplace=True))[0] == 200
        assert len(hub.asked) == asked  # it is there
        wrong = await load(client, "hf://acme/tuned", load_inplace=True, sha256="0" * 64)
        assert wrong[0] == 400
        assert "and sha256 is 000" in wrong[1]
    answer = await client.post("/v1/chat/completions", json=chat_body(model="new"))
    assert answer.json()["model"] == "new"


async def test_what_a_bucket_has_needs_a_checksum(
    serve: Fixture, make_client: Fixture, saved: dict[str, bytes],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    client = await make_client(serve(cache=tmp_path / "cache"))
    weights = hashlib.sha256(saved["adapter_model.safetensors"]).hexdigest()
    with serving({}) as served:
        bucket_of(served, monkeypatch, saved)
        status, said = await load(client, "s3://bucket/m")
        assert status == 400
        assert "lists no SHA-256 of adapter_model.safetensors; send it as sha256" in said
        status, said = await load(client, "s3://bucket/m", sha256="0" * 64)
        assert status == 502
        assert "was downloaded twice with another SHA-256" in said
        assert (await load(client, "s3://bucket/m", sha256=weights))[0] == 200


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("https://example.com/x", 400, "is no place of an adapter; write hf://organisation"),
        ("hf://only-a-name", 400, "is no place of an adapter"),
        ("hf://acme/other", 502, "hf://acme/other@main has no list of files"),
        ("hf://acme/tuned", 404, "hf://acme/tuned@main has no adapter_model.safetensors"),
    ],
)
async def test_a_place_without_an_adapter_is_told(
    serve: Fixture, make_client: Fixture, saved: dict[str, bytes], path: str, status: int,
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    runtime = serve(cache=tmp_path / "cache")
    client = await make_client(runtime)
    del saved["adapter_model.safetensors"]  # a pickle alone
    with serving({}) as hub:
        hub_of(hub, monkeypatch, saved)
        found, text = await load(client, path)
    assert found == status
    assert said in text
    assert "NIM_MODEL_PATH" not in text
    assert runtime.adapters.get("new") is None


async def test_without_a_folder_there_are_no_routes(
    make_client: Fixture, make_runtime: Fixture
) -> None:
    client = await make_client(make_runtime(HELLO))
    body = {"lora_name": "x", "lora_path": "x"}
    answer = await client.post("/v1/load_lora_adapter", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "route_not_found")
    assert "NIM_PEFT_SOURCE" in answer.json()["error"]["message"]


async def test_metrics_name_the_adapters_that_run(
    serve: Fixture, make_client: Fixture, chat_body: Fixture
) -> None:
    runtime = serve()
    client = await make_client(runtime)

    async def infos() -> list[str]:
        page = (await client.get("/v1/metrics")).text
        return [line for line in page.splitlines() if line.startswith("vllm:lora_requests_info{")]

    [idle] = await infos()
    assert 'running_lora_adapters=""' in idle
    assert 'max_lora="8"' in idle
    request = EngineRequest(
        "r", (1,), SamplingParams(9), adapter=Adapter("french", "/adapters/french", "1")
    )
    events = runtime.engine.generate(request)
    await anext(events)
    [busy] = await infos()
    assert 'running_lora_adapters="french"' in busy
    await events.aclose()


def folder_of(source: Path, shared: Path | None = None) -> AdapterFolder:
    return AdapterFolder(source, 32, (MODEL,), shared)


def test_a_refresh_finds_what_came_changed_and_went(source: Path) -> None:
    folder = folder_of(source)
    folder.refresh()
    before = {each.name: each.key for each in folder.all()}
    assert before.keys() == {"french", "law"}
    write_plain(source / "french", rank=8)
    shutil.rmtree(source / "law")
    write_plain(source / "german")
    write_plain(source / MODEL)  # the model's own name
    folder.refresh()
    after = {each.name: each.key for each in folder.all()}
    assert after.keys() == {"french", "german"}
    assert after["french"] != before["french"]


def test_a_folder_that_is_being_written_leaves_what_was_served(source: Path) -> None:
    folder = folder_of(source)
    folder.refresh()
    before = folder.get("french")
    weights = source / "french" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    folder.refresh()
    assert folder.get("french") == before


def test_all_workers_have_one_table(source: Path, tmp_path: Path) -> None:
    (shared := tmp_path / "shared").mkdir()
    one, other = (folder_of(source, shared) for _ in range(2))
    one.refresh()
    other.refresh()
    assert [each.name for each in other.all()] == ["french", "law"]
    one.remove("law")
    assert other.get("law") is None
    other.refresh()  # as at the start of a worker that follows one that died
    assert one.get("law") is None
    found = other.read("law", source / "law")
    other.put(found)
    assert one.get("law") == found


async def test_the_folder_is_looked_at_while_the_worker_serves(
    serve: Fixture, source: Path
) -> None:
    runtime = serve()
    runtime = replace(runtime, parts=(ServedAdapters(runtime.of(ServedAdapters).folder, 0.01),))
    async with SERVING.running(runtime):
        write_plain(source / "german")
        while runtime.adapters.get("german") is None:
            await asyncio.sleep(0.01)
