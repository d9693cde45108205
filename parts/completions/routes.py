"""POST /v1/completions: the route, and the plan of its raw prompts, with the limits of all."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec
from fastapi import Response

from auth.base import Scope
from engines.base import EngineInfo
from parts.completions.answer import CompletionAnswer, CompletionChunks, CompletionHead
from parts.completions.schema import MAX_CHOICES, Completion, CompletionRequest, RenderedTokens
from service.answer.generation import Generation
from service.answer.plan import Plan
from service.api.common.answer import StreamedUsage, prompt_logprobs_not_streamed
from service.api.common.operations import event_stream, json_router
from service.api.common.plan import AnswerSpec, Guidance, format_of, plan_of
from service.api.common.prompt import context_bound, runtime_for
from service.api.common.raw_prompt import TokenIds, check_token_ids, encode_prompts
from service.chat_format import ChatFormat
from service.errors import RequestError
from service.http.paths import PathRow, RouteGroup, Routes
from service.http.streaming import EventStream, WholeAnswer
from service.request import RequestContext
from service.runtime import CurrentContext, CurrentRuntime, Runtime
from service.work import in_thread

router = json_router("Completions")
tokens = json_router("Tokens")

MAX_ECHOED = 4 * 1024 * 1024  # characters: more than a whole context spells
_DEFAULT_MAX_TOKENS = 16  # as in OpenAI's API


@router.post(
    "/v1/completions",
    response_model=Completion,
    responses=event_stream("`text_completion` objects, then `[DONE]`."),
)
async def create_completion(
    body: CompletionRequest, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """Continue raw prompts; with `stream` as server-sent events ending in `[DONE]`."""
    runtime.lifecycle.check_accepting()
    runtime = runtime_for(body.model, runtime, context)
    plan = await plan_completion(body, runtime, context)
    echoed = await echoes(body, plan)
    generation = Generation(runtime.engine, plan)
    id, created = f"cmpl-{runtime.new_id()}", int(runtime.clock())
    head = CompletionHead(id, created, runtime.model.id, plan.shown_tier)
    if body.stream:
        usage = StreamedUsage.asked(body.stream_options)
        chunks = CompletionChunks(generation, head, echoed, usage)
        return EventStream(runtime, generation, chunks)
    answer = CompletionAnswer(generation, head, echoed, body.prompt_logprobs)
    return WholeAnswer(runtime, generation, answer.add, answer.body)


@tokens.post("/v1/completions/render", response_model=list[RenderedTokens])
async def render_completion(
    body: CompletionRequest, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """The token ids of each prompt of this body, as vLLM has them; nothing is generated."""
    runtime.lifecycle.check_started()
    runtime = runtime_for(body.model, runtime, context)
    plan = await plan_completion(body, runtime, context)
    rendered = [{"token_ids": list(token_ids)} for token_ids in plan.prompts]
    return Response(msgspec.json.encode(rendered), media_type="application/json")


async def plan_completion(
    request: CompletionRequest, runtime: Runtime, context: RequestContext
) -> Plan:
    """The plan of a completion request; raises RequestError naming the field."""
    info = runtime.engine.info
    _check_together(request, len(_listed(request)))
    prompts = await _prompts(runtime.format, request, info)
    format, fields = format_of(request.response_format, request.structured_outputs)
    spec = AnswerSpec(
        request,
        request.max_tokens or _DEFAULT_MAX_TOKENS,
        Guidance(format=format, fields=fields),
        stop=request.stop,
        num_choices=request.n or 1,
        num_logprobs=request.logprobs,
        logprobs_param="logprobs",
        num_prompt_logprobs=_num_prompt_logprobs(request),
        prompt_logprobs_param="echo" if request.prompt_logprobs is None else "prompt_logprobs",
        output="marked" if request.skip_special_tokens is False else "text",
    )
    return await plan_of(spec, prompts, runtime, context)


def _num_prompt_logprobs(request: CompletionRequest) -> int | None:
    """How many likeliest tokens are wanted beside each of the prompt's; None: no scores at all."""
    echoed = request.logprobs if request.echo else None
    asked = [num for num in (request.prompt_logprobs, echoed) if num is not None]
    return max(asked, default=None)


async def echoes(request: CompletionRequest, plan: Plan) -> list[str]:
    """The text before each choice: its prompt with `echo`, else nothing."""
    if not request.echo:
        return [""] * (plan.num_choices * len(plan.prompts))
    if isinstance(request.prompt, str):
        texts = [request.prompt]
    else:
        write = partial(_given_text, plan.format)
        texts = await in_thread(lambda: [*map(write, _listed(request))])
    num_chars = plan.num_choices * sum(map(len, texts))
    if num_chars > MAX_ECHOED:
        raise RequestError(
            f"echo would repeat {num_chars} characters of prompts; at most {MAX_ECHOED} are "
            "repeated. Leave it out, or ask for fewer answers.",
            param="echo",
        )
    return [text for text in texts for _ in range(plan.num_choices)]


async def _prompts(
    format: ChatFormat, request: CompletionRequest, info: EngineInfo
) -> list[TokenIds]:
    listed = _listed(request)
    bounds = [context_bound(info, _param(request, index)) for index in range(len(listed))]
    if texts := [prompt for prompt in listed if isinstance(prompt, str)]:
        prompts = await encode_prompts(format, texts, bounds)
    else:
        prompts = [tuple(prompt) for prompt in listed if not isinstance(prompt, str)]
    for prompt, bound in zip(prompts, bounds, strict=True):
        bound.check(len(prompt))
        check_token_ids(prompt if not texts else prompt[:1], bound.param, info.vocab_size)
    return prompts


def _listed(request: CompletionRequest) -> list[str | list[int]]:
    """The prompts one by one, whatever form they came in."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    return [[*prompt]] if isinstance(prompt[0], int) else [*prompt]


def _given_text(format: ChatFormat, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else format.decode_marked(prompt)


def _param(request: CompletionRequest, index: int) -> str:
    is_one = isinstance(request.prompt, str) or isinstance(request.prompt[0], int)
    return "prompt" if is_one else f"prompt[{index}]"


def _check_together(request: CompletionRequest, num_prompts: int) -> None:
    """Refuse combinations of fields that are valid alone."""
    n = request.n or 1
    if request.best_of not in (None, n):
        raise RequestError(
            "best_of is not supported beyond n: every choice is returned; leave it out.",
            param="best_of",
            code="unsupported_value",
        )
    if request.stream and _num_prompt_logprobs(request) is not None:
        raise prompt_logprobs_not_streamed(
            "echo" if request.prompt_logprobs is None else "prompt_logprobs"
        )
    if request.stream_options and not request.stream:
        raise RequestError("stream_options needs stream: true.", param="stream_options")
    if num_prompts * n > MAX_CHOICES:
        raise RequestError(
            f"{num_prompts} prompts with n={n} are {num_prompts * n} answers; at most "
            f"{MAX_CHOICES} are given at once. Send several requests.",
            param="n",
        )


_RENDER: Final = "/v1/completions/render"
ROUTES: Final = (
    Routes(
        rows=(PathRow("/v1/completions", Scope.INFERENCE, is_generating=True),),
        router=router,
        rank=20,
        groups=(RouteGroup("Completions", "OpenAI's older API for raw prompts.", 30),),
    ),
    Routes(
        rows=(PathRow(_RENDER, Scope.INFERENCE, is_counted=True, read="render"),),
        router=tokens,
        rank=41,  # behind the routes of tokens
    ),
)
