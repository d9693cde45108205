"""pydantic-ai: chat completions, responses, and Anthropic's route."""

import os

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

URL, KEY = os.environ["HARMONIUM_URL"], os.environ["HARMONIUM_API_KEY"]
# Configuration:
MODEL = OpenAIChatModel("gpt-oss-20b", provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY))

MODELS = (
    MODEL,
    OpenAIResponsesModel("gpt-oss-20b", provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)),
    AnthropicModel("gpt-oss-20b", provider=AnthropicProvider(base_url=URL, api_key=KEY)),
)
QUESTION = "What is the weather in Zürich?"
ANSWER = "It is sunny in Zürich."


class Report(BaseModel):
    city: str
    degrees: int


def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


async def chat():
    for model in MODELS:
        assert (await Agent(model).run(QUESTION)).output == ANSWER


async def stream():
    for model in MODELS:
        async with Agent(model, tools=[weather]).run_stream(QUESTION) as result:
            texts = [text async for text in result.stream_text(delta=True, debounce_by=None)]
        assert "".join(texts) == ANSWER


async def tools():
    """The loop, and a second turn with the first one's messages."""
    for model in MODELS:
        agent = Agent(model, tools=[weather])
        first = await agent.run(QUESTION)
        assert first.output == ANSWER
        again = await agent.run(QUESTION, message_history=first.all_messages())
        assert again.output == ANSWER


async def structured():
    for model in MODELS:
        kinds = [ToolOutput, PromptedOutput]
        if not isinstance(model, AnthropicModel):  # it knows by name which models have it
            kinds.append(NativeOutput)
        for kind in kinds:
            result = await Agent(model, output_type=kind(Report)).run(QUESTION)
            assert result.output == Report(city="Zürich", degrees=21), kind
