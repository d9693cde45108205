"""`generate: false`: a prompt is prepared in the cache, and nothing is answered to it."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

from starlette.types import Send

from parts.responses.answer.document import ResponseEnd, ended, usage_json
from parts.responses.answer.events import ResponseEvents
from parts.responses.answer.output import Output
from parts.responses.request import Draft
from parts.responses.writing import keep
from service.answer.generation import Generation
from service.http.streaming import SSE_HEADERS, GenerationResponse
from service.runtime import Runtime


class PreparedResponse(GenerationResponse):
    """A response without output, whose prompt the engine has read; the next can continue it."""

    def __init__(self, runtime: Runtime, draft: Draft) -> None:
        # An engine computes a prompt to write a token, which is not shown.
        sampling = replace(draft.plan.sampling, max_tokens=1, min_tokens=0)
        plan = replace(draft.plan, sampling=sampling, grammar=None, hosted=None)
        super().__init__(runtime, Generation(runtime.engine, plan))
        self._draft = draft

    async def _respond(self, send: Send) -> None:
        async with aclosing(self._generation.steps()) as steps:
            async for _ in steps:
                pass
        usage = usage_json(self._generation)
        usage["output_tokens"] = 0
        usage["output_tokens_details"] = {"reasoning_tokens": 0}
        usage["total_tokens"] = usage["input_tokens"]
        head, end = self._draft.head, ResponseEnd("completed", self._runtime.clock(), usage)
        document = ended(head, Output(head), end)
        await keep(self._runtime, self._draft, document)
        await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        body = ResponseEvents(head).without_output(document)
        await send({"type": "http.response.body", "body": body})
