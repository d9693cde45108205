"""Every parameter that the SDKs publish is one that our schemas know."""

from __future__ import annotations

from importlib import import_module

import pytest
from pydantic import BaseModel

from parts.completions.schema import CompletionRequest
from parts.messages.schema import CountTokensRequest, MessagesRequest
from parts.responses.schemas.request import ResponseRequest
from service.api.chat.schema import ChatRequest

SENT_AS_HEADERS = {"user_profile_id", "workspace_id", "betas"}  # by Anthropic's SDK


@pytest.mark.parametrize(
    ("schema", "module", "name"),
    [
        (ChatRequest, "openai.types.chat.completion_create_params", "Completion"),
        (CompletionRequest, "openai.types.completion_create_params", "Completion"),
        (ResponseRequest, "openai.types.responses.response_create_params", "Response"),
        (MessagesRequest, "anthropic.types.message_create_params", "Message"),
        (MessagesRequest, "anthropic.types.beta.message_create_params", "Message"),
    ],
)
def test_no_parameter_of_a_request_is_forgotten(
    schema: type[BaseModel], module: str, name: str
) -> None:
    parameters = [
        getattr(import_module(module), f"{name}CreateParams{kind}")
        for kind in ("NonStreaming", "Streaming")
    ]
    published = {field for each in parameters for field in each.__annotations__}
    assert {"model", "stream"} <= published
    assert published - SENT_AS_HEADERS - schema.model_fields.keys() == set()


def test_no_parameter_of_counting_is_forgotten() -> None:
    from anthropic.types.message_count_tokens_params import MessageCountTokensParams

    counted = {*MessageCountTokensParams.__annotations__}
    assert counted - SENT_AS_HEADERS - CountTokensRequest.model_fields.keys() == set()
