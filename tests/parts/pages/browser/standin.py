"""The server's own pages before an API that streams a given answer at a given speed.

For answers like gpt-oss's, which nano cannot write. The pages' files are the real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

from parts.pages.routes import ROUTES

MODEL = "gpt-oss-120b-with-a-long-name"
METADATA: dict[str, Any] = {
    "version": "0",
    "modelInfo": [{"shortName": MODEL, "modelUrl": MODEL}],
    "selectedModelProfileId": "0" * 64,
    "licenseInfo": None,
    "description": "",
    "defaults": {"temperature": 1.0, "top_p": 1.0},
    "profile": {
        "name": "native-h200-mxfp4-tp1-pp1-latency",
        "engine": "native",
        "precision": "mxfp4",
        "goal": "latency",
        "hardware": "H200",
        "num_devices": 1,
        "replicas": 1,
        "max_model_len": 131072,
        "status": "tuned",
        "source": "",
        "reason": "",
        "notes": [],
    },
}
METRICS = """harmonium_inter_token_latency_seconds_sum 2
harmonium_inter_token_latency_seconds_count 1338
harmonium_engine_running_requests 8
"""


@dataclass
class StandIn:
    """What the stand-in says, and what it was asked."""

    answer: str = "Yes."
    tokens_per_s: float = 1000
    is_ready: bool = True
    cut_after: int | None = None  # words, after which the connection breaks
    until: int | None = None  # words, after which none comes, and nothing breaks, while it is set
    is_restarting: bool = False  # no word comes while it is set; afterwards a restart is told
    thoughts: str = ""
    tools: tuple[str, ...] = ()  # built-in ones that are connected
    may_kill_engine: bool = False
    num_killed: int = 0
    waiting: int = 0  # requests in the queue
    others: tuple[str, ...] = ()  # origins that the page may ask, too
    visitors: tuple[str, ...] = ()  # origins whose pages may ask this one
    thinks_on: bool = False  # no answer comes while it is set; a control request ends it
    controlled: list[tuple[str, Any]] = field(default_factory=list)  # ids, and what was asked
    refusals: list[Response] = field(default_factory=list)  # what the next requests get
    calls: str = ""  # arguments of a call of the calculator that stands for every answer
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)  # that came with what was asked
    url: str = ""

    def application(self) -> FastAPI:
        app = FastAPI(routes=list(ROUTES[0].router.routes))
        app.state.runtime = SimpleNamespace(compared_origins=self.others, of=lambda kind: None)
        app.add_middleware(
            CORSMiddleware,
            allow_origins=self.visitors,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
        )

        @app.get("/v1/health/ready")
        async def ready() -> JSONResponse:
            if self.is_ready:
                return JSONResponse({"object": "health.response", "message": "Service is ready."})
            error = {"message": "The engine restarts.", "type": "server_error", "code": "not_ready"}
            return JSONResponse({"error": error}, 503)

        @app.get("/v1/models")
        async def models() -> dict[str, Any]:
            return {"object": "list", "data": [{"id": MODEL, "max_model_len": 131072}]}

        @app.get("/v1/metadata")
        async def metadata() -> dict[str, Any]:
            return (
                METADATA
                | {"tools": self.tools, "may_kill_engine": self.may_kill_engine}
                | {"compare_origins": self.others}
            )

        @app.get("/v1/metrics")
        async def metrics() -> PlainTextResponse:
            return PlainTextResponse(
                METRICS + f"harmonium_engine_waiting_requests {self.waiting}\n"
            )

        @app.post("/tokenize")
        async def tokenize(request: Request) -> dict[str, Any]:
            return {"count": len((await request.json())["prompt"].split())}

        @app.post("/v1/engine/kill")
        async def kill() -> dict[str, Any]:
            self.num_killed += 1
            return {"killed": 1}

        @app.post("/v1/chat/completions/{id}/control")
        async def control(id: str, request: Request) -> dict[str, Any]:
            self.controlled.append((id, await request.json()))
            self.thinks_on = False
            return {"id": id, "success": True}

        @app.post("/v1/chat/completions")
        async def chat(request: Request) -> Response:
            body = await request.json()
            self.asked.append(body)
            self.keys.append(request.headers.get("authorization", ""))
            if self.refusals:
                return self.refusals.pop(0)
            return StreamingResponse(self._stream(body), media_type="text/event-stream")

        return app

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[str]:
        """Each word is a token; its id is its place. A request that continues gets all words."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        thoughts = re.findall(r"\s*\S+|\s+$", self.thoughts)
        words = [*thoughts, *re.findall(r"\s*\S+|\s+$", self.answer)]
        given = body.get("continue_token_ids") or []
        for count, word in enumerate(words):
            while self.until is not None and count >= self.until:
                await asyncio.sleep(0.005)
            while self.thinks_on and count == len(thoughts):
                await asyncio.sleep(0.02)
            if self.cut_after is not None and count >= self.cut_after and not given:
                raise ConnectionResetError
            if self.is_restarting:
                self.is_ready = False
                while self.is_restarting:
                    await asyncio.sleep(0.02)
                self.is_ready = True
                yield ": engine restarted, the answer continues\n\n"
            is_other = count < len(given) and given[count] != count
            ids: dict[str, Any] = {"delta": {}, "index": 0, "token_ids": [count]}
            if body.get("return_token_logprobs"):
                entry = {"id": count, "token": word, "logprob": -0.1 * (count % 20)}
                rival = {"id": 1000 + count, "token": " rival", "logprob": -3.0}
                ids["token_logprobs"] = [
                    None if count < len(given) else {**entry, "top_logprobs": [entry, rival]}
                ]
            yield f"data: {json.dumps({'choices': [ids]})}\n\n"
            kind = "reasoning" if count < len(thoughts) else "content"
            delta = {kind: " rival" if is_other else word}
            chunk = {"delta": delta, "index": 0, "finish_reason": None}
            yield f"data: {json.dumps({'id': 'chatcmpl-1', 'choices': [chunk]})}\n\n"
            if (pause := began + count / self.tokens_per_s - loop.time()) > 0:
                await asyncio.sleep(pause)
        if self.calls:
            call = {"index": 0, "id": f"c{len(self.asked)}"}
            function = {"name": "calculator", "arguments": self.calls}
            called = {"tool_calls": [call | {"function": function}]}
            yield f"data: {json.dumps({'choices': [{'delta': called, 'index': 0}]})}\n\n"
        usage = {"prompt_tokens": 1000, "completion_tokens": len(words)}
        end = {"delta": {}, "index": 0, "finish_reason": "stop"}
        yield f"data: {json.dumps({'choices': [end]})}\n\n"
        yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"


@contextlib.contextmanager
def running(standin: StandIn) -> Iterator[StandIn]:
    """Serve it on a port of its own, in a thread."""
    config = uvicorn.Config(standin.application(), port=0, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        standin.url = f"http://127.0.0.1:{port}"
        yield standin
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join()
