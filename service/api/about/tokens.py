"""POST /tokenize, /detokenize, and the render route of chat."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from fastapi import Response

from auth.base import Scope
from service.api.about.schema import (
    DetokenizeRequest,
    DetokenizeResponse,
    RenderChatRequest,
    RenderedPrompt,
    TokenizeRequest,
    TokenizeResponse,
    TokenizerInfo,
)
from service.api.chat.routes import chat_tools, plan_chat, to_conversation
from service.api.chat.schema import ChatMessage, ChatRequest
from service.api.common.operations import json_router
from service.api.common.prompt import counting_bound, current_date, render_prompt, runtime_for
from service.api.common.raw_prompt import check_token_ids, encode_prompt
from service.chat_format import ChatFormat
from service.errors import RequestError
from service.http.paths import PathRow, RouteGroup, Routes
from service.request import RequestContext
from service.runtime import CurrentContext, CurrentRuntime, Runtime
from service.work import in_thread

router = json_router("Tokens")

_FEW_TOKENS = 4096  # decoded in a few milliseconds


@router.post("/tokenize", response_model=TokenizeResponse)
async def tokenize(
    body: TokenizeRequest, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """The token ids of a raw prompt, or of a conversation as the model would read it."""
    _check(body.model, runtime, context)
    token_ids = await _token_ids(body, runtime)
    texts = await _texts(token_ids, runtime.format) if body.return_token_strs else None
    return _json(
        TokenizeResponse(
            count=len(token_ids),
            max_model_len=runtime.engine.info.max_model_len,
            tokens=list(token_ids),
            token_strs=texts,
        )
    )


@router.post("/detokenize", response_model=DetokenizeResponse)
async def detokenize(
    body: DetokenizeRequest, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """The text of token ids, control tokens spelt out."""
    _check(body.model, runtime, context)
    if body.tokens:
        check_token_ids(body.tokens, "tokens", runtime.engine.info.vocab_size)
    return _json(DetokenizeResponse(prompt=await _text(body.tokens, runtime.format)))


@router.get("/tokenizer_info")
async def get_tokenizer_info(runtime: CurrentRuntime) -> TokenizerInfo:
    """The tokenizer's special tokens, as vLLM has them."""
    runtime.lifecycle.check_started()
    return TokenizerInfo(model_max_length=runtime.engine.info.max_model_len)


@router.post("/apply-template", include_in_schema=False)  # llama.cpp's path
@router.post("/v1/chat/completions/render", response_model=RenderedPrompt)
async def render_chat(
    body: RenderChatRequest, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """The prompt that this body would give on /v1/chat/completions; nothing is generated."""
    runtime.lifecycle.check_started()
    runtime = runtime_for(body.model, runtime, context)
    plan = await plan_chat(body, runtime, context, opens_answer=body.add_generation_prompt)
    token_ids = plan.prompt_token_ids
    return _json(
        RenderedPrompt(
            model=runtime.model.id,
            prompt=await _text(token_ids, runtime.format),
            token_ids=list(token_ids),
            count=len(token_ids),
            max_model_len=runtime.engine.info.max_model_len,
        )
    )


def _json(answer: TokenizeResponse | DetokenizeResponse | RenderedPrompt) -> Response:
    """Written at once: FastAPI would look at each of its tokens."""
    return Response(answer.model_dump_json(), media_type="application/json")


async def _text(token_ids: Sequence[int], format: ChatFormat) -> str:
    if len(token_ids) <= _FEW_TOKENS:
        return format.decode_marked(token_ids)
    return await in_thread(partial(format.decode_marked, token_ids))


async def _texts(token_ids: Sequence[int], format: ChatFormat) -> list[str]:
    if len(token_ids) <= _FEW_TOKENS:
        return _each_text(token_ids, format)
    return await in_thread(partial(_each_text, token_ids, format))


def _each_text(token_ids: Sequence[int], format: ChatFormat) -> list[str]:
    return [format.decode_marked([token_id]) for token_id in token_ids]


def _check(model: str | None, runtime: Runtime, context: RequestContext) -> None:
    runtime.lifecycle.check_started()
    runtime_for(model, runtime, context)


async def _token_ids(body: TokenizeRequest, runtime: Runtime) -> tuple[int, ...]:
    if body.prompt is not None:
        if body.messages is not None or body.tools is not None:
            raise RequestError("Give either prompt or messages, not both.", param="prompt")
        return await encode_prompt(runtime.format, body.prompt, counting_bound("prompt"))
    if body.messages is None:
        message = "prompt or messages is required."
        raise RequestError(message, param="prompt", code="missing_required_parameter")
    return await _conversation_ids(body, body.messages, runtime)


async def _conversation_ids(
    body: TokenizeRequest, messages: list[ChatMessage], runtime: Runtime
) -> tuple[int, ...]:
    request = ChatRequest(model=runtime.model.id, messages=messages, tools=body.tools)
    offered = chat_tools(request, runtime.toolbox)
    date = current_date(runtime.clock())
    conversation = await to_conversation(
        request, date, offered, opens_answer=body.add_generation_prompt
    )
    bound = counting_bound("messages")
    param_of = "messages[{}].tool_call_id".format
    return await render_prompt(runtime.format, conversation, param_of, bound)


ROUTES: Final = Routes(
    rows=(
        PathRow("/tokenize", Scope.INFERENCE, is_counted=True),
        PathRow("/detokenize", Scope.INFERENCE, is_counted=True),
        PathRow("/tokenizer_info", Scope.INFERENCE),
        PathRow("/v1/chat/completions/render", Scope.INFERENCE, is_counted=True, read="render"),
        PathRow("/apply-template", Scope.INFERENCE, is_counted=True, read="render"),
    ),
    router=router,
    rank=40,
    groups=(RouteGroup("Tokens", "Text and conversations as tokens, compatible with vLLM.", 40),),
)
