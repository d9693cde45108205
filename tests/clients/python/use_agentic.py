"""What a client of vLLM's Agentic API gets, with our server behind it: `use_agentic.py URL KEY`."""

from __future__ import annotations

import sys

from openai import OpenAI

client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key=sys.argv[2], max_retries=0)
MODEL = "gpt-oss-20b"
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}

first = client.responses.create(model=MODEL, input="Hello!")
assert first.output_text.startswith("Hello"), first
events = client.responses.create(
    model=MODEL, input="Hello!", previous_response_id=first.id, stream=True
)
assert [event.type for event in events][-1] == "response.completed"
called = client.responses.create(model=MODEL, input="How is the weather?", tools=[TOOL])
assert called.output[-1].type == "function_call", called
conversation = client.conversations.create()
answer = client.responses.create(model=MODEL, input="Hello!", conversation=conversation.id)
assert answer.output_text.startswith("Hello"), answer
said = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hello."}]
assert client.responses.compact(model=MODEL, input=said).output[-1].type == "compaction"
