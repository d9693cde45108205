"""litellm: completion with the loop of its documentation, responses, batches, Anthropic's route."""

import json
import os
import time

import litellm
from pydantic import BaseModel

URL, KEY = os.environ["HARMONIUM_URL"], os.environ["HARMONIUM_API_KEY"]
# Configuration:
OPENAI = {"model": "openai/gpt-oss-20b", "api_base": f"{URL}/v1", "api_key": KEY}

OTHERS = [OPENAI | {"model": f"{name}/gpt-oss-20b"} for name in ("hosted_vllm", "nvidia_nim")]
ANTHROPIC = {"model": "anthropic/gpt-oss-20b", "api_base": URL, "api_key": KEY}
QUESTION = "What is the weather in Zürich?"
ANSWER = "It is sunny in Zürich."
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "The city"}},
    "required": ["city"],
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]


class Report(BaseModel):
    city: str
    degrees: int


def chat():
    for provider in (OPENAI, *OTHERS, ANTHROPIC):
        response = litellm.completion(**provider, messages=[{"role": "user", "content": QUESTION}])
        assert response.choices[0].message.content == ANSWER


def stream():
    for provider in (OPENAI, *OTHERS, ANTHROPIC):
        chunks = litellm.completion(
            **provider, messages=[{"role": "user", "content": QUESTION}], stream=True
        )
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks]
        assert "".join(texts) == ANSWER


def tools():
    """The documented loop: the message that came is appended as it is, and as its dump."""
    for provider in (OPENAI, *OTHERS, ANTHROPIC):
        for as_sent in (lambda message: message, lambda message: message.model_dump()):
            _loop(provider, as_sent)


def _loop(provider, as_sent):
    messages = [{"role": "user", "content": QUESTION}]
    response = litellm.completion(**provider, messages=messages, tools=TOOLS, tool_choice="auto")
    message = response.choices[0].message
    messages.append(as_sent(message))
    for call in message.tool_calls:
        assert json.loads(call.function.arguments) == {"city": "Zürich"}
        messages.append(
            {
                "tool_call_id": call.id,
                "role": "tool",
                "name": call.function.name,
                "content": "sunny",
            }
        )
    response = litellm.completion(**provider, messages=messages, tools=TOOLS)
    assert response.choices[0].message.content == ANSWER


def structured():
    response = litellm.completion(
        **OPENAI, messages=[{"role": "user", "content": QUESTION}], response_format=Report
    )
    report = Report.model_validate_json(response.choices[0].message.content)
    assert report == Report(city="Zürich", degrees=21)


def responses():
    response = litellm.responses(**OPENAI, input=QUESTION)
    assert response.output[-1].content[0].text == ANSWER


def batches():
    """Upload, run, and read, as its pages on files and batches show."""
    body = {"model": "gpt-oss-20b", "messages": [{"role": "user", "content": QUESTION}]}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    lines = "".join(json.dumps({"custom_id": f"n{n}"} | line) + "\n" for n in range(5))
    for provider in ("openai", "hosted_vllm"):
        server = {"custom_llm_provider": provider, "api_base": f"{URL}/v1", "api_key": KEY}
        file = litellm.create_file(file=("in.jsonl", lines.encode()), purpose="batch", **server)
        batch = litellm.create_batch(
            completion_window="24h",
            endpoint="/v1/chat/completions",
            input_file_id=file.id,
            metadata={"a": "b"},
            **server,
        )
        while batch.status not in ("completed", "failed", "expired", "cancelled"):
            time.sleep(0.1)
            batch = litellm.retrieve_batch(batch_id=batch.id, **server)
        assert batch.status == "completed", batch
        content = litellm.file_content(file_id=batch.output_file_id, **server).content
        results = [json.loads(each) for each in content.splitlines()]
        assert sorted(each["custom_id"] for each in results) == [f"n{n}" for n in range(5)]
        for each in results:
            message = each["response"]["body"]["choices"][0]["message"]
            assert message["content"] == ANSWER


def overflow():
    """What `context_window_fallbacks` waits for."""
    messages = [{"role": "user", "content": "word " * 140_000}]
    for provider in (OPENAI, *OTHERS, ANTHROPIC):
        try:
            litellm.completion(**provider, messages=messages)
        except litellm.ContextWindowExceededError:
            continue
        raise AssertionError(provider["model"])
