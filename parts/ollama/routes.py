"""Ollama's routes, and the plans of their requests."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec
from fastapi import Depends, Request, Response

from auth.base import Scope
from parts.ollama.answer import (
    LINES,
    AnswerShape,
    LineStream,
    OllamaAnswer,
    OllamaLines,
    error_body,
)
from parts.ollama.conversation import OllamaHistory
from parts.ollama.models import TAG, OllamaNames, listed_model, running_model, shown_model
from parts.ollama.schema import (
    AskedAnswer,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaOptions,
    OllamaShowRequest,
)
from service.answer.generation import Generation
from service.answer.plan import Output, Plan
from service.api.about.health import EngineNote
from service.api.common.operations import Responses, json_router
from service.api.common.plan import AnswerSpec, Guidance, plan_of
from service.api.common.prompt import (
    PromptBound,
    context_bound,
    current_date,
    render_prompt,
    runtime_for,
)
from service.api.common.raw_prompt import encode_prompt
from service.api.common.schema import ResponseModel, SamplingFields
from service.conversation import Conversation, Message, ReasoningEffort, ResponseFormat, Tool
from service.errors import RequestError
from service.guide.answer import TEXT, AnswerFormat, FieldNames
from service.http.body import JSONRoute
from service.http.paths import Dialect, PathRow, RouteGroup, Routes
from service.http.streaming import WholeAnswer
from service.request import RequestContext
from service.runtime import CurrentContext, CurrentRuntime, Runtime
from service.work import by_number

VERSION: Final = "0.40.0"  # whose API this is: clients refuse servers that look too old
_OFF: Final = (
    "Ollama's API is off here; the operator sets NIM_OLLAMA_PORT. The model is also served under "
    "/v1: POST /v1/chat/completions."
)
_FIELDS: Final = FieldNames(format="format", schema="format")
_OPTIONS: Final = {"repeat_penalty": "repetition_penalty"}  # by our names, where they differ
_SAMPLED: Final = (
    *("temperature", "top_p", "top_k", "min_p", "seed"),
    *("repeat_penalty", "presence_penalty", "frequency_penalty"),
)


class OllamaError(ResponseModel):
    """What went wrong, in words."""

    error: str


class _AnyContent(JSONRoute):
    """Takes a body as JSON whatever its type is called: Ollama does, and its examples send none."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_any(request: Request) -> Response:
            kept = [pair for pair in request.scope["headers"] if pair[0] != b"content-type"]
            headers = [*kept, (b"content-type", b"application/json")]
            return await handle(Request({**request.scope, "headers": headers}, request.receive))

        return handle_any


async def _check_on(runtime: CurrentRuntime) -> None:
    if runtime.of(OllamaNames) is None:
        raise RequestError(_OFF, status=404, code="route_not_found")


router = json_router("Ollama")
router.route_class = _AnyContent
router.dependencies.append(Depends(_check_on))


def _lines(what: str) -> Responses:
    schema = {"type": "string", "description": f"A line of JSON for each piece: {what}"}
    return {200: {"content": {LINES: {"schema": schema}}}}


@router.post("/api/chat", responses=_lines("`message`, and in the last one the counts."))
async def ollama_chat(
    body: OllamaChatRequest, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """Answer a conversation, by default as a stream of lines of JSON."""
    runtime.lifecycle.check_accepting()
    runtime = _served(body.model, runtime, context)
    shape = _shape(body, runtime, is_chat=True)
    if not body.messages:
        return _loaded(body, shape)
    return _answer(body, await plan_chat(body, runtime, context), shape, runtime)


@router.post("/api/generate", responses=_lines("`response`, and in the last one the counts."))
async def ollama_generate(
    body: OllamaGenerateRequest, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """Answer a prompt, by default as a stream of lines of JSON."""
    runtime.lifecycle.check_accepting()
    runtime = _served(body.model, runtime, context)
    shape = _shape(body, runtime, is_chat=False)
    if not body.prompt:
        return _loaded(body, shape)
    return _answer(body, await plan_generate(body, runtime, context), shape, runtime)


@router.get("/api/version")
async def ollama_version() -> dict[str, str]:
    """The version of Ollama whose API this is."""
    return {"version": VERSION}


@router.get("/api/tags")
async def ollama_tags(runtime: CurrentRuntime, context: CurrentContext) -> dict[str, Any]:
    """The model that is served, under each of its names, and its adapters."""
    found = [listed_model(name, runtime) for name in _names(runtime, context)]
    for adapter in runtime.adapters.all() if runtime.adapters is not None else ():
        if context.may_use((adapter.name,)):
            found.append(listed_model(f"{adapter.name}{TAG}", runtime.with_adapter(adapter)))
    return {"models": found}


@router.get("/api/ps")
async def ollama_ps(runtime: CurrentRuntime, context: CurrentContext) -> dict[str, Any]:
    """The one model, which is loaded unless its engine sleeps."""
    runtime.lifecycle.check_started()
    note = runtime.of(EngineNote)
    names = () if note and await note.read() else _names(runtime, context)[:1]
    return {"models": [running_model(name, runtime) for name in names]}


@router.post("/api/show")
async def ollama_show(
    body: OllamaShowRequest, runtime: CurrentRuntime, context: CurrentContext
) -> dict[str, Any]:
    """What the model is and can do."""
    runtime.lifecycle.check_started()
    name = body.model or body.name
    if name is None:
        raise RequestError("model is required.", param="model", code="missing_required_parameter")
    return shown_model(_served(name, runtime, context))


_SERVE: Final = "the operator chooses the model at the start: `harmonium serve MODEL`"
_EMBED: Final = "gpt-oss has no embeddings; run an embedding model beside this server"
_REFUSED: Final = (
    ("POST", "pull", _SERVE),
    ("POST", "push", "models are not published from here"),
    ("POST", "create", _SERVE),
    ("POST", "copy", "NIM_SERVED_MODEL_NAME gives the model more names"),
    ("DELETE", "delete", _SERVE),
    ("POST", "embed", _EMBED),
    ("POST", "embeddings", _EMBED),
)


def _refusal(method: str, name: str, remedy: str) -> Callable[[], Any]:
    async def refuse() -> Response:
        raise RequestError(
            f"{method} /api/{name} is not supported: {remedy}.", code="unsupported_value"
        )

    return refuse


for _method, _name, _remedy in _REFUSED:
    router.add_api_route(
        f"/api/{_name}",
        _refusal(_method, _name, _remedy),
        methods=[_method],
        include_in_schema=False,
    )


def _served(model: str | None, runtime: Runtime, context: RequestContext) -> Runtime:
    """Of the model or an adapter, whose name may have Ollama's tag."""
    named = model if not model or model in runtime.model.names else model.removesuffix(TAG)
    return runtime_for(named, runtime, context)


def _names(runtime: Runtime, context: RequestContext) -> tuple[str, ...]:
    names = runtime.of(OllamaNames)
    return names.listed if names and context.may_use(runtime.model.names) else ()


def _shape(request: AskedAnswer, runtime: Runtime, *, is_chat: bool) -> AnswerShape:
    return AnswerShape(
        is_chat, request.model, runtime.clock, lambda: f"call_{runtime.new_id()[-24:]}"
    )


def _loaded(request: AskedAnswer, shape: AnswerShape) -> Response:
    if request.is_unload:
        raise RequestError(
            "keep_alive 0 asks to unload the model, which the operator decides here; leave it out.",
            param="keep_alive",
            code="unsupported_value",
        )
    return Response(msgspec.json.encode(shape.loaded()) + b"\n", media_type="application/json")


def _answer(request: AskedAnswer, plan: Plan, shape: AnswerShape, runtime: Runtime) -> Response:
    generation = Generation(runtime.engine, plan)
    if request.stream is False:
        answer = OllamaAnswer(generation, shape)
        return WholeAnswer(runtime, generation, answer.add, answer.body)
    return LineStream(runtime, generation, OllamaLines(generation, shape))


async def plan_chat(request: OllamaChatRequest, runtime: Runtime, context: RequestContext) -> Plan:
    """The plan of a conversation; raises RequestError naming the field."""
    messages = request.messages or []
    history = await by_number(partial(OllamaHistory, messages), len(messages))
    context.notes.num_unread += history.num_unread
    conversation = Conversation(
        messages=tuple(history.messages),
        current_date=current_date(runtime.clock()),
        tools=_tools(request),
        reasoning_effort=_effort(request),
        response_format=_described(request),
    )
    bound = _bound(request, "messages", runtime)
    token_ids = await render_prompt(runtime.format, conversation, _param, bound)
    return await _plan(request, token_ids, conversation.tools, "chat", runtime, context)


async def plan_generate(
    request: OllamaGenerateRequest, runtime: Runtime, context: RequestContext
) -> Plan:
    """The plan of a prompt; raises RequestError naming the field."""
    bound, prompt = _bound(request, "prompt", runtime), request.prompt or ""
    if request.raw:
        token_ids = await encode_prompt(runtime.format, prompt, bound)
        return await _plan(request, token_ids, (), "text", runtime, context)
    system = (Message("system", request.system),) if request.system else ()
    conversation = Conversation(
        messages=(*system, Message("user", prompt)),
        current_date=current_date(runtime.clock()),
        reasoning_effort=_effort(request),
        response_format=_described(request),
    )
    token_ids = await render_prompt(runtime.format, conversation, _param, bound)
    return await _plan(request, token_ids, (), "chat", runtime, context)


async def _plan(
    request: AskedAnswer,
    token_ids: tuple[int, ...],
    tools: tuple[Tool, ...],
    output: Output,
    runtime: Runtime,
    context: RequestContext,
) -> Plan:
    if request.top_logprobs and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs: true.", param="top_logprobs")
    options = request.options or OllamaOptions()
    limit = options.num_predict if (options.num_predict or 0) > 0 else None
    if options.num_ctx is not None:
        room = max(options.num_ctx - len(token_ids), 1)
        limit = room if limit is None else min(limit, room)
    spec = AnswerSpec(
        _sampling(options),
        limit,
        Guidance(format=_format(request), fields=_FIELDS),
        tools,
        stop=options.stop,
        num_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        has_reasoning=request.think is not False,
        output=output,
    )
    return await plan_of(spec, [token_ids], runtime, context)


def _sampling(options: OllamaOptions) -> SamplingFields:
    given = options.model_dump(include={*_SAMPLED}, exclude_none=True)
    if given.get("seed") == -1:
        del given["seed"]
    return SamplingFields.model_validate(
        {_OPTIONS.get(name, name): value for name, value in given.items()}
    )


def _bound(request: AskedAnswer, param: str, runtime: Runtime) -> PromptBound:
    info = runtime.engine.info
    bound = context_bound(info, param)
    asked = request.options.num_ctx if request.options else None
    if asked is None or asked >= info.max_model_len:
        return bound

    def too_long(number: str, _: int) -> str:
        return (
            f"{param} has {number} tokens, and options.num_ctx is {asked}, answer included; raise "
            "options.num_ctx or leave it out."
        )

    return replace(bound, max_tokens=asked - 1, context=asked, words=too_long)


def _param(index: int) -> str:
    return f"messages[{index}].tool_call_id"


def _effort(request: AskedAnswer) -> ReasoningEffort:
    if isinstance(request.think, str):
        return request.think
    return "none" if request.think is False else None


def _format(request: AskedAnswer) -> AnswerFormat:
    if isinstance(request.format, dict):
        return AnswerFormat("json_schema", request.format, widens=True)
    return AnswerFormat("json_object") if request.format == "json" else TEXT


def _described(request: AskedAnswer) -> ResponseFormat | None:
    """The schema of the answer, as the prompt tells the model."""
    return ResponseFormat(request.format) if isinstance(request.format, dict) else None


def _tools(request: OllamaChatRequest) -> tuple[Tool, ...]:
    """The offered tools; raises RequestError for a name that comes twice."""
    tools: dict[str, Tool] = {}
    for index, given in enumerate(request.tools or ()):
        function, place = given.function, f"tools[{index}].function"
        if function.name in tools:
            message = f"{place}.name repeats {function.name!r}; give each tool its own name."
            raise RequestError(message, param=f"{place}.name")
        tools[function.name] = Tool(
            function.name,
            function.description or "",
            function.parameters,
            function.strict,
            field=f"{place}.parameters",
        )
    return tuple(tools.values())


OLLAMA: Final = Dialect(error_body, OllamaError)
ROUTES: Final = (
    Routes(
        rows=(
            *(
                PathRow(f"/api/{name}", Scope.INFERENCE, is_generating=True, dialect=OLLAMA)
                for name in ("chat", "generate")
            ),
            *(
                PathRow(f"/api/{name}", Scope.MODELS, dialect=OLLAMA)
                for name in ("version", "tags", "ps", "show", *(name for _, name, _ in _REFUSED))
            ),
        ),
        router=router,
        rank=35,
        groups=(RouteGroup("Ollama", "Ollama's API, where the operator switches it on.", 25),),
    ),
)
