"""openai, the Python SDK: chat completions and responses."""

import os

from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel

URL, KEY = os.environ["HARMONIUM_URL"], os.environ["HARMONIUM_API_KEY"]
# Configuration:
client = OpenAI(base_url=f"{URL}/v1", api_key=KEY)

MODEL = "gpt-oss-20b"
QUESTION = "What is the weather in Zürich?"
ANSWER = "It is sunny in Zürich."


class Report(BaseModel):
    city: str
    degrees: int


class Weather(BaseModel):
    """The weather in a city."""

    city: str


CHAT_TOOL = pydantic_function_tool(Weather, name="weather")
TOOL = {
    "type": "function",
    "name": "weather",
    "strict": True,
    "parameters": Weather.model_json_schema() | {"additionalProperties": False},
}


def chat():
    completion = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}]
    )
    assert completion.choices[0].message.content == ANSWER
    assert completion.usage.completion_tokens_details.reasoning_tokens > 0


def stream():
    with client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        stream_options={"include_usage": True},
    ) as events:
        deltas = [event.delta for event in events if event.type == "content.delta"]
        completion = events.get_final_completion()
    assert "".join(deltas) == completion.choices[0].message.content == ANSWER
    assert completion.usage.completion_tokens > 0


def tools():
    """The loop of OpenAI's guide, its message appended as it came, then as a dump of it."""
    for as_sent in (lambda message: message, lambda message: message.model_dump()):
        messages = [{"role": "user", "content": QUESTION}]
        completion = client.chat.completions.create(
            model=MODEL, messages=messages, tools=[CHAT_TOOL]
        )
        message = completion.choices[0].message
        (call,) = message.tool_calls
        assert Weather.model_validate_json(call.function.arguments).city == "Zürich"
        messages += [
            as_sent(message),
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ]
        completion = client.chat.completions.create(
            model=MODEL, messages=messages, tools=[CHAT_TOOL]
        )
        assert completion.choices[0].message.content == ANSWER


def structured():
    completion = client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], response_format=Report
    )
    assert completion.choices[0].message.parsed == Report(city="Zürich", degrees=21)


def responses():
    response = client.responses.create(model=MODEL, input=QUESTION)
    assert response.output_text == ANSWER
    assert client.responses.retrieve(response.id).output_text == ANSWER


def responses_stream():
    with client.responses.stream(model=MODEL, input=QUESTION) as events:
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        response = events.get_final_response()
    assert "".join(deltas) == response.output_text == ANSWER


def responses_tools():
    """The items go back as they came, and as dumps with all their nulls."""
    for as_sent in (lambda item: item, lambda item: item.model_dump()):
        turns = [{"role": "user", "content": QUESTION}]
        response = client.responses.create(model=MODEL, input=turns, tools=[TOOL], store=False)
        (call,) = [item for item in response.output if item.type == "function_call"]
        turns += [as_sent(item) for item in response.output]
        turns.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
        response = client.responses.create(model=MODEL, input=turns, tools=[TOOL], store=False)
        assert response.output_text == ANSWER


def responses_structured():
    response = client.responses.parse(model=MODEL, input=QUESTION, text_format=Report)
    assert response.output_parsed == Report(city="Zürich", degrees=21)


def turn(connection, **changes):
    """The events of one turn over a WebSocket."""
    connection.response.create(model=MODEL, store=False, **{"input": QUESTION, **changes})
    events = []
    for event in connection:
        events.append(event)
        if event.type in ("response.completed", "response.failed", "error"):
            return events
    raise AssertionError("the connection was closed")


def socket_chain():
    with client.responses.connect() as connection:
        first = turn(connection, tools=[TOOL])[-1].response
        (call,) = [item for item in first.output if item.type == "function_call"]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        events = turn(connection, input=[result], previous_response_id=first.id, tools=[TOOL])
        second = events[-1].response
    assert second.output_text == ANSWER
    assert second.usage.input_tokens > first.usage.input_tokens


def socket_missing_parent():
    with client.responses.connect() as connection:
        error = turn(connection, previous_response_id="resp_none")[-1]
        assert (error.status, error.error.code) == (400, "previous_response_not_found")
        assert turn(connection)[-1].response.output_text == ANSWER


def socket_prepared():
    with client.responses.connect() as connection:
        prepared = turn(connection, generate=False)
        assert [event.type for event in prepared] == ["response.created", "response.completed"]
        id = prepared[-1].response.id
        assert turn(connection, input="Please.", previous_response_id=id)[-1].response.output


def socket_lanes():
    with client.responses.connect() as connection:
        for lane in ("a", "b"):
            connection.response.create(model=MODEL, input=QUESTION, stream_id=lane, store=False)
        ended = {}
        for event in connection:
            if event.type == "response.completed":
                ended[event.stream_id] = event.response.output_text
            if len(ended) == 2:
                break
    assert ended == {"a": ANSWER, "b": ANSWER}


def completions():
    completion = client.completions.create(model=MODEL, prompt="Hello", max_tokens=8)
    assert completion.usage.completion_tokens <= 8


def models():
    assert [model.id for model in client.models.list()] == [MODEL]


def decisions():
    """Of each kind of question, in the order in which they were asked."""
    asked = [
        {"type": "predicate", "instructions": "Is it about the weather?", "name": "weather"},
        {
            "type": "choice",
            "instructions": "Which language is it?",
            "choices": [{"value": "en"}, {"value": "de"}],
        },
        {
            "type": "score",
            "instructions": "How urgent is it?",
            "levels": [{"label": "not"}, {"label": "very"}],
        },
    ]
    decision = client.decisions.create(model=MODEL, input=QUESTION, questions=asked)
    predicate, choice, score = decision.answers
    assert (predicate.type, predicate.name) == ("predicate", "weather")
    assert 0 <= predicate.probability <= 1
    assert choice.choice in ("en", "de")
    assert abs(sum(each.probability for each in choice.probabilities) - 1) < 1e-6
    assert 0 <= score.score <= 1
    assert decision.usage.input_tokens > 0
