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
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from service.pages import routes as pages

MODEL = "gpt-oss-120b-with-a-long-name"


@dataclass
class StandIn:
    """What the stand-in says, and what it was asked."""

    answer: str = "Yes."
    tokens_per_s: float = 1000
    is_ready: bool = True
    cut_after: int | None = None  # words, after which the connection breaks
    asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def application(self) -> FastAPI:
        app = FastAPI(routes=list(pages.router.routes))

        @app.get("/v1/health/ready")
        async def ready() -> JSONResponse:
            if self.is_ready:
                return JSONResponse({"object": "health.response", "message": "Service is ready."})
            error = {"message": "The engine restarts.", "type": "server_error", "code": "not_ready"}
            return JSONResponse({"error": error}, 503)

        @app.get("/v1/models")
        async def models() -> dict[str, Any]:
            return {"object": "list", "data": [{"id": MODEL, "max_model_len": 131072}]}

        @app.post("/v1/chat/completions")
        async def chat(request: Request) -> StreamingResponse:
            self.asked.append(await request.json())
            return StreamingResponse(self._stream(), media_type="text/event-stream")

        return app

    async def _stream(self) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        words = re.findall(r"\s*\S+|\s+$", self.answer)
        for count, word in enumerate(words):
            if self.cut_after is not None and count >= self.cut_after:
                raise ConnectionResetError
            delta = {"delta": {"content": word}, "index": 0, "finish_reason": None}
            yield f"data: {json.dumps({'choices': [delta]})}\n\n"
            if (pause := began + count / self.tokens_per_s - loop.time()) > 0:
                await asyncio.sleep(pause)
        end = {"delta": {}, "index": 0, "finish_reason": "stop"}
        yield f"data: {json.dumps({'choices': [end]})}\n\ndata: [DONE]\n\n"


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
