"""openai-agents, OpenAI's Agents SDK: over responses, its default, and chat completions."""

import os
import subprocess
import tempfile
from pathlib import Path

import openai
from agents import (
    Agent,
    ApplyPatchTool,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    Runner,
    ShellTool,
    SQLiteSession,
    apply_diff,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from pydantic import BaseModel

URL, KEY = os.environ["HARMONIUM_URL"], os.environ["HARMONIUM_API_KEY"]
# Configuration:
set_default_openai_client(openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY))

MODEL = "gpt-oss-20b"
QUESTION = "What is the weather in Zürich?"
ANSWER = "It is sunny in Zürich."
set_tracing_disabled(True)  # traces go to OpenAI

cities: list[str] = []


class Report(BaseModel):
    city: str
    degrees: int


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    cities.append(city)
    return "sunny"


def _agent(**options):
    return Agent(name="A", model=MODEL, **options)


def _chat_agent(**options):
    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY)
    return Agent(name="A", model=OpenAIChatCompletionsModel(MODEL, client), **options)


async def chat():
    for make in (_agent, _chat_agent):
        assert (await Runner.run(make(), QUESTION)).final_output == ANSWER


async def stream():
    for make in (_agent, _chat_agent):
        result = Runner.run_streamed(make(tools=[weather]), QUESTION)
        texts = [
            event.data.delta
            async for event in result.stream_events()
            if event.type == "raw_response_event"
            and event.data.type == "response.output_text.delta"
        ]
        assert "".join(texts) == result.final_output == ANSWER


async def tools():
    """The loop, in which what the first turn gave comes back."""
    for make in (_agent, _chat_agent):
        cities.clear()
        result = await Runner.run(make(tools=[weather], instructions="Be brief."), QUESTION)
        assert (result.final_output, cities) == (ANSWER, ["Zürich"])
        first, second = [response.usage for response in result.raw_responses]
        assert 0 < first.input_tokens < second.input_tokens


async def structured():
    """A call that is asked for, then an answer of a type."""
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    for make in (_agent, _chat_agent):
        cities.clear()
        agent = make(tools=[weather], model_settings=settings, output_type=Report)
        result = await Runner.run(agent, QUESTION)
        assert result.final_output == Report(city="Zürich", degrees=21)
        assert cities == ["Zürich"]


async def second_turn():
    """A conversation goes on: by hand, and kept in a session."""
    for make in (_agent, _chat_agent):
        first = await Runner.run(make(tools=[weather]), QUESTION)
        again = [*first.to_input_list(), {"role": "user", "content": QUESTION}]
        assert (await Runner.run(make(tools=[weather]), again)).final_output == ANSWER
        session = SQLiteSession("a")
        for _ in range(2):
            result = await Runner.run(make(tools=[weather]), QUESTION, session=session)
            assert result.final_output == ANSWER


class Editor:
    """Changes files as the SDK's tool `apply_patch` is asked to."""

    def create_file(self, operation):
        Path(operation.path).write_text(apply_diff("", operation.diff, mode="create"))

    def update_file(self, operation):
        file = Path(operation.path)
        file.write_text(apply_diff(file.read_text(), operation.diff))

    def delete_file(self, operation):
        Path(operation.path).unlink()


def _run(request):
    outputs = [
        subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout
        for command in request.data.action.commands
    ]
    return "".join(outputs)


async def conversation():
    """A session that the server keeps, and a conversation that responses are added to."""
    session = OpenAIConversationsSession()
    agent = _agent(tools=[weather], instructions="Be brief.")
    for _ in range(2):
        cities.clear()
        result = await Runner.run(agent, QUESTION, session=session)
        assert (result.final_output, cities) == (ANSWER, ["Zürich"])
    kept = await session.get_items()
    assert sum(item.get("role") == "user" for item in kept) == 2, kept
    await session.pop_item()
    assert len(await session.get_items()) == len(kept) - 1
    await session.clear_session()
    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY)
    made = await client.conversations.create()
    for _ in range(2):
        result = await Runner.run(agent, QUESTION, conversation_id=made.id)
        assert result.final_output == ANSWER


async def shell_and_patch():
    """The SDK's own tools, which the API knows by their types; streamed and not."""
    agent = _agent(tools=[ShellTool(executor=_run), ApplyPatchTool(editor=Editor())])
    for is_streamed in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            notes = Path(folder, "notes.txt")
            notes.write_text("I like teh sea.\n")
            task = f"Correct the spelling mistake in {notes}."
            if is_streamed:
                result = Runner.run_streamed(agent, task)
                _ = [event async for event in result.stream_events()]
            else:
                result = await Runner.run(agent, task)
            assert result.final_output == "I corrected the file."
            assert notes.read_text() == "I like the sea.\n"
