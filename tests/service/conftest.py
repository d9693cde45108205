"""A service around a scripted engine: real Harmony ids in, HTTP out."""

from __future__ import annotations

import copy
import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from fastapi import applications
from fastapi._compat import v2 as openapi_fields
from openai_harmony import HarmonyEncoding, load_harmony_encoding

from engines.base import Adapter, Engine
from engines.grammar.tree import Grammar
from engines.native.grammar.compiler import Compiled, Guide, written
from engines.native.grammar.library import compiled
from engines.native.grammar.vocabulary import load_tokenizer
from engines.parts import folders
from service.admission.gate import Gate
from service.admission.lifecycle import Lifecycle
from service.chat_format import format_named
from service.harmony import vocabulary
from service.harmony.vocabulary import RETURN, encode_text
from service.run.server import create_app
from service.runtime import Runtime, ServedModel, ServerLimits
from service.store.base import ScriptDatabase
from service.telemetry.metrics import Metrics
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.redis_server import start_redis

CONTROL = {
    "return": vocabulary.RETURN,
    "constrain": vocabulary.CONSTRAIN,
    "channel": vocabulary.CHANNEL,
    "start": vocabulary.START,
    "end": vocabulary.END,
    "message": vocabulary.MESSAGE,
    "call": vocabulary.CALL,
    "endoftext": vocabulary.ENDOFTEXT,
}
NOON = 1_790_000_000.0
VOCAB_SIZE = 201_088

_WRITTEN: dict[tuple[Any, ...], Any] = {}
_write = vars(applications)["get_openapi"]


def _written_once(*, routes: Sequence[Any], **options: Any) -> Any:
    """FastAPI's document; each takes a second of CPU, and most apps of tests have equal routes."""
    shown = [route for route in routes if route.include_in_schema]
    key = (*map(id, shown), repr(sorted(options.items(), key=itemgetter(0))))
    if key not in _WRITTEN:
        _WRITTEN[key] = (shown, _write(routes=shown, **options))  # the routes' ids stay theirs
    return copy.deepcopy(_WRITTEN[key][1])


vars(applications)["get_openapi"] = _written_once
# FastAPI looks each model up again for each route: half of the document's time.
vars(openapi_fields)["get_model_fields"] = cache(openapi_fields.get_model_fields)


class OneAdapter:
    """An adapter, `french`; implements service.runtime.Adapters."""

    def get(self, name: str) -> Adapter | None:
        return next((each for each in self.all() if each.name == name), None)

    def all(self) -> Sequence[Adapter]:
        return [Adapter("french", "/adapters/french", "the adapter's key")]


@pytest.fixture
def brief_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI's document has the last of the routes only."""

    def brief(*, routes: Sequence[Any], **options: Any) -> Any:
        shown = [route for route in routes if route.include_in_schema]
        return _write(routes=shown[-5:], **options)

    monkeypatch.setitem(vars(applications), "get_openapi", brief)


HarmonyIds = Callable[[str], tuple[int, ...]]
MakeRuntime = Callable[..., Runtime]
MakeClient = Callable[..., httpx2.AsyncClient]


def open_redis(url: str, clock: Callable[[], float] = time.time) -> ScriptDatabase:
    """The database of a Redis, whose part no test of another folder names."""
    database: ScriptDatabase = import_module("parts.redis.database").RedisDatabase(url, clock)
    return database


@pytest.fixture(scope="session")
def guide_of(vocabulary_path: Path) -> Callable[[Grammar], Guide]:
    """How the native engine follows a grammar; raises InvalidGrammar."""

    def guide(grammar: Grammar) -> Guide:
        matcher = compiled(load_tokenizer(vocabulary_path, VOCAB_SIZE), written(grammar))
        return Guide(Compiled(matcher, 0), VOCAB_SIZE - 1, RETURN)

    return guide


@pytest.fixture
def fits(guide_of: Callable[[Grammar], Guide]) -> Callable[[Grammar, str], bool]:
    """Whether a grammar takes a whole text; raises InvalidGrammar."""

    def check(grammar: Grammar, text: str) -> bool:
        guide, mask = guide_of(grammar), np.empty(VOCAB_SIZE // 32, np.int32)
        for token_id in (*encode_text(text), RETURN):
            guide.fill(mask)
            if not mask[token_id // 32] >> token_id % 32 & 1:
                return False
            guide.accept(token_id)
        return True

    return check


@pytest.fixture(scope="session")
def openai_sdk() -> Any:
    """The published client; importing it takes a second: not for all who collect."""
    import openai

    return openai


@pytest.fixture(scope="session")
def library() -> HarmonyEncoding:
    """The published library, to compare with; to load it takes 0.3 s."""
    return load_harmony_encoding("HarmonyGptOss")


@pytest.fixture(scope="session")
def harmony_ids() -> HarmonyIds:
    """Ids of Harmony text as a model would write it, `<|...|>` being control tokens."""

    def encode(text: str) -> tuple[int, ...]:
        ids: list[int] = []
        for plain, name in re.findall(r"(.*?)(?:<\|(\w+)\|>|\Z)", text, re.DOTALL):
            ids += vocabulary.encode_text(plain) if plain else []
            ids += [CONTROL[name]] if name else []
        return tuple(ids)

    return encode


@pytest.fixture(scope="session")
def make_runtime(harmony_ids: HarmonyIds) -> MakeRuntime:
    """A ready runtime with a fixed clock and counted ids, around a scripted engine."""

    def make(*scripts: str, engine: Engine | None = None, **options: Any) -> Runtime:
        limits = {
            name: options.pop(name) for name in list(options) if name in ServerLimits.__slots__
        }
        authenticator = options.pop("authenticator", None)
        gate = options.pop("gate", None) or Gate()
        format = options.pop("format", None) or format_named("harmony")
        if engine is None:
            ids = tuple(harmony_ids(script) for script in scripts)
            engine = FakeEngine(FakeOptions(scripts=ids, **options))
        numbers = itertools.count(1)
        lifecycle = Lifecycle()
        lifecycle.mark_ready()
        return Runtime(
            engine=engine,
            model=ServedModel("gpt-oss-20b", "openai/gpt-oss-20b", "0" * 64, int(NOON)),
            format=format,
            metrics=Metrics("gpt-oss-20b"),
            lifecycle=lifecycle,
            limits=replace(ServerLimits(), **limits),
            gate=gate,
            authenticator=authenticator,
            clock=lambda: NOON,
            new_id=lambda: f"{next(numbers):032x}",
        )

    return make


@pytest.fixture
async def make_client(make_runtime: MakeRuntime) -> AsyncIterator[MakeClient]:
    """An HTTP client of the application, in this process, its engine started."""
    opened: list[tuple[httpx2.AsyncClient, Engine]] = []

    async def start(runtime: Runtime) -> httpx2.AsyncClient:
        await runtime.engine.start()
        transport = httpx2.ASGITransport(create_app(runtime), raise_app_exceptions=False)
        client = httpx2.AsyncClient(transport=transport, base_url="http://service")
        opened.append((client, runtime.engine))
        return client

    yield start  # type: ignore[misc]
    for client, engine in opened:
        await client.aclose()
        await engine.stop()


@pytest.fixture
def chat_body() -> Callable[..., dict[str, Any]]:
    """A minimal valid request, changed as asked."""

    def body(**changes: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": "Hello!"}]
        return {"model": "gpt-oss-20b", "messages": messages} | changes

    return body


@pytest.fixture
def events() -> Callable[[str], list[Any]]:
    """The events of an SSE text, `[DONE]` as that string, comments left out."""

    def parse(text: str) -> list[Any]:
        data = [block[6:] for block in text.split("\n\n") if block.startswith("data: ")]
        return [item if item == "[DONE]" else json.loads(item) for item in data]

    return parse


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Redis of our own, where there is a redis-server to start, and the part for it."""
    if "redis" not in folders():
        pytest.skip("the part redis was removed")
    path = tmp_path_factory.mktemp("redis") / "redis.sock"
    with start_redis(path) as process:
        yield f"unix://{path}"
        process.terminate()
