"""Built-in tools on /v1/responses: called, run and shown within one answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from engines.base import EngineRequest
from service.harmony.vocabulary import decode_marked
from tests.needs import needs

pytestmark = needs("responses")

Fixture = Callable[..., Any]
Script = dict[str, str]

PATH = "/v1/responses"
SEARCH, CODE = {"type": "web_search"}, {"type": "code_interpreter", "container": {"type": "auto"}}
THOUGHT = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant"


def body(**changes: Any) -> dict[str, Any]:
    return {"model": "gpt-oss-20b", "input": "2 + 2?", "tools": [SEARCH, CODE]} | changes


def tail(request: EngineRequest, first: str) -> str:
    """What the prompt has behind the conversation."""
    text = decode_marked(request.prompt_token_ids)
    return text[text.index(first) :]


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


async def test_results_join_the_prompt_behind_what_the_model_wrote(
    service: Fixture, script: Script, prompts: list[EngineRequest]
) -> None:
    code = THOUGHT.format("Compute.") + script["python"].format("print(2 + 2)")
    client = await service(code, script["search"], script["final"])
    answer = (await client.post(PATH, json=body())).json()
    from parts.responses.schemas.response import ResponseObject

    ResponseObject.model_validate(answer)
    assert [item["type"] for item in answer["output"]] == [
        "reasoning",
        "code_interpreter_call",
        "web_search_call",
        "message",
    ]
    assert answer["output"][1]["outputs"] == [{"type": "logs", "logs": "4\n"}]
    assert answer["output"][2]["action"] == {"type": "search", "query": "é", "queries": ["é"]}
    assert answer["output"][2]["output"] == "[0] 10 results for «é»"
    assert [item["status"] for item in answer["output"]] == ["completed"] * 4
    assert tail(prompts[2], code) == (
        f"{code}<|start|>python to=assistant<|channel|>analysis<|message|>4\n<|end|>"
        f"<|start|>assistant{script['search']}<|start|>browser.search to=assistant"
        "<|channel|>analysis<|message|>[0] 10 results for «é»<|end|><|start|>assistant"
    )
    usage, last = answer["usage"], prompts[2]
    num_final = usage["input_tokens"] + usage["output_tokens"] - len(last.prompt_token_ids)
    assert last.sampling.max_tokens == 131_072 - len(last.prompt_token_ids)
    assert 0 < num_final < 12  # all rounds together are the last prompt and its answer
    assert len({request.request_id for request in prompts}) == 3


@pytest.mark.parametrize("step", [1, 100])
async def test_a_stream_has_the_typed_events_in_order(
    service: Fixture, script: Script, step: int
) -> None:
    texts = script["python"].format("print(4)"), script["search"], script["final"]
    client = await service(*texts, tokens_per_step=step)
    whole = (await client.post(PATH, json=body())).json()
    events = events_of((await client.post(PATH, json=body(stream=True))).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[2:14] == [
        "output_item.added",
        "code_interpreter_call.in_progress",
        "code_interpreter_call_code.delta",
        "code_interpreter_call_code.done",
        "code_interpreter_call.interpreting",
        "code_interpreter_call.completed",
        "output_item.done",
        "output_item.added",
        "web_search_call.in_progress",
        "web_search_call.searching",
        "web_search_call.completed",
        "output_item.done",
    ]
    assert kinds[14:16] == ["output_item.added", "content_part.added"]
    assert events[4]["delta"] == events[5]["code"] == "print(4)"
    done = [event["item"] for event in events if event["type"].endswith("output_item.done")]
    assert done == events[-1]["response"]["output"]
    keys = ("type", "code", "outputs", "action", "output", "content")
    said = [[{k: item.get(k) for k in keys} for item in r] for r in (done, whole["output"])]
    assert said[0] == said[1]
    usages = [response["usage"] for response in (whole, events[-1]["response"])]
    for usage in usages:
        usage.pop("input_tokens_details")
    assert usages[0] == usages[1]


async def test_names_live_as_long_as_the_answer(service: Fixture, script: Script) -> None:
    first, second = script["python"].format("x = 2"), script["python"].format("print(x)")
    client = await service(first, second, script["final"], second, script["final"])
    one = (await client.post(PATH, json=body())).json()
    other = (await client.post(PATH, json=body())).json()
    assert one["output"][1]["outputs"] == [{"type": "logs", "logs": "2\n"}]
    assert other["output"][0]["status"] == "failed"
    assert "'x' is not defined" in other["output"][0]["outputs"][0]["logs"]


async def test_only_what_is_asked_for_and_connected_is_offered(
    service: Fixture, script: Script, prompts: list[EngineRequest], tool_urls: dict[str, str]
) -> None:
    client = await service(script["final"], urls={"python": tool_urls["mcp"]})
    for tools, offered in (
        ([SEARCH, CODE], ["## python"]),
        ([SEARCH], []),
        ([], []),
        ([CODE, {"type": "function", "name": "f"}], ["## python", "## functions"]),
    ):
        assert (await client.post(PATH, json=body(tools=tools))).status_code == 200
        text = decode_marked(prompts[-1].prompt_token_ids)
        sections = [line for line in text.splitlines() if line.startswith("## ")]
        assert sections == offered
    await client.post(PATH, json=body(tool_choice="none"))
    assert "## python" not in decode_marked(prompts[-1].prompt_token_ids)


@pytest.mark.parametrize("limit", ["the operator's", "the client's"])
async def test_calls_are_limited_and_the_model_is_told(
    service: Fixture, script: Script, prompts: list[EngineRequest], limit: str
) -> None:
    most = 2 if limit == "the operator's" else 9
    client = await service(script["python"].format("print(1)"), max_calls=most)
    asked = {"max_tool_calls": 2} if limit == "the client's" else {}
    answer = (await client.post(PATH, json=body(**asked))).json()
    assert [item["status"] for item in answer["output"]] == [
        "completed",
        "completed",
        "failed",
        "incomplete",
    ]
    assert "no more calls are allowed" in decode_marked(prompts[3].prompt_token_ids)
    assert len(prompts) == 4
    assert answer["status"] == "incomplete"


async def test_the_token_limit_is_of_all_rounds_together(
    service: Fixture, script: Script, prompts: list[EngineRequest]
) -> None:
    client = await service(script["python"].format("print(1)"), script["final"])
    whole = (await client.post(PATH, json=body())).json()
    num_all = whole["usage"]["output_tokens"]
    answer = (await client.post(PATH, json=body(max_output_tokens=num_all - 1))).json()
    assert answer["status"] == "incomplete"
    assert answer["usage"]["output_tokens"] == num_all - 1
    assert prompts[3].sampling.max_tokens < prompts[2].sampling.max_tokens == num_all - 1
    cut = (await client.post(PATH, json=body(max_output_tokens=9))).json()
    assert cut["output"][-1]["status"] == "incomplete"


async def test_a_function_loop_goes_on_with_what_the_tools_gave(
    service: Fixture, script: Script, prompts: list[EngineRequest]
) -> None:
    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    client = await service(script["python"].format("print(7)"), call, script["final"])
    tools = [CODE, {"type": "function", "name": "f"}]
    first = (await client.post(PATH, json=body(tools=tools))).json()
    assert [item["type"] for item in first["output"]] == ["code_interpreter_call", "function_call"]
    result = {
        "type": "function_call_output",
        "call_id": first["output"][1]["call_id"],
        "output": "ok",
    }
    named = body(tools=tools, previous_response_id=first["id"], input=[result])
    sent = body(
        tools=tools, input=[{"role": "user", "content": "2 + 2?"}, *first["output"], result]
    )
    for request in (named, sent):
        assert (await client.post(PATH, json=request)).status_code == 200
        assert tail(prompts[-1], "<|start|>assistant to=python").startswith(
            "<|start|>assistant to=python<|channel|>analysis code<|message|>print(7)<|call|>"
            "<|start|>python to=assistant<|channel|>analysis<|message|>7\n<|end|>"
            "<|start|>assistant to=functions.f"
        )
        prompts[:] = prompts[:2]


async def test_a_required_call_is_required_once(
    service: Fixture, script: Script, prompts: list[EngineRequest]
) -> None:
    client = await service(script["python"].format("print(1)"), script["final"])
    answer = await client.post(PATH, json=body(tool_choice="required"))
    assert answer.json()["status"] == "completed"
    assert prompts[0].grammar is not None
    assert "to=python" in repr(prompts[0].grammar)
    assert prompts[1].grammar is None
    strict = {"type": "function", "name": "f", "strict": True, "parameters": {"type": "object"}}
    await client.post(PATH, json=body(tools=[CODE, strict]))
    assert prompts[2].grammar is not None
    assert prompts[2].grammar == prompts[3].grammar


async def test_a_built_in_tool_can_be_chosen(
    service: Fixture, script: Script, prompts: list[EngineRequest]
) -> None:
    client = await service(script["python"].format("print(1)"), script["final"])
    tools = [CODE, SEARCH, {"type": "function", "name": "f"}]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "code_interpreter"}]}
    for choice in ({"type": "code_interpreter"}, allowed):
        prompts.clear()
        answer = await client.post(PATH, json=body(tools=tools, tool_choice=choice))
        assert answer.json()["status"] == "completed", answer.text
        assert answer.json()["tool_choice"] == choice
        first, second = (repr(request.grammar) for request in prompts)
        for other in ("browser", "functions.f"):
            assert other not in first + second
        assert "to=python" in first
        assert "final" not in first, "it must call"
        assert "final" in second, "the call has been made"


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([CODE], {"type": "web_search"}, "tool_choice.type"),  # it is not offered
        ([CODE, SEARCH], {"type": "web_search"}, "tool_choice.type"),  # it is not connected
        (
            [CODE],
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
            "tool_choice.tools[0].type",
        ),
        ([CODE], {"type": "image_generation"}, "tool_choice"),
    ],
)
async def test_a_choice_of_a_tool_that_is_not_there_is_refused(
    service: Fixture,
    script: Script,
    tool_urls: dict[str, str],
    tools: list[Any],
    choice: dict[str, Any],
    param: str,
) -> None:
    client = await service(script["final"], urls={"python": tool_urls["mcp"]})
    answer = await client.post(PATH, json=body(tools=tools, tool_choice=choice))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_in_the_background_and_replayed(service: Fixture, script: Script) -> None:
    client = await service(script["python"].format("print(1)"), script["final"])
    stream = await client.post(PATH, json=body(background=True, stream=True))
    events = events_of(stream.text)
    id = events[0]["response"]["id"]
    again = await client.get(f"{PATH}/{id}", params={"stream": True, "starting_after": 4})
    assert events_of(again.text) == events[5:]
    kept = (await client.get(f"{PATH}/{id}")).json()
    assert kept["output"][0]["outputs"] == [{"type": "logs", "logs": "1\n"}]


BROWSER, PYTHON = ({"type": "mcp", "server_label": label} for label in ("browser", "python"))


async def test_a_connected_server_may_be_asked_for_by_its_label(
    service: Fixture, script: Script, prompts: list[EngineRequest]
) -> None:
    """As vLLM has it: the calls are those of MCP, and are read back."""
    texts = script["python"].format("print(4)"), script["search"], script["final"]
    client = await service(*texts)
    answer = (await client.post(PATH, json=body(tools=[BROWSER, PYTHON]))).json()
    code, search = answer["output"][:2]
    assert (code["type"], code["server_label"], code["name"]) == ("mcp_call", "python", "python")
    assert (code["arguments"], code["output"]) == ('{"code": "print(4)"}', "4\n")
    assert (search["server_label"], search["name"]) == ("browser", "search")
    assert search["arguments"] == '{"query": "é"}'
    again = [{"role": "user", "content": "2 + 2?"}, code, search]
    await client.post(PATH, json=body(input=again, tools=[BROWSER, PYTHON]))
    assert "<|message|>print(4)<|call|>" in decode_marked(prompts[3].prompt_token_ids)
    assert 'to=browser.search<|channel|>analysis code<|message|>{"query": "é"}' in decode_marked(
        prompts[3].prompt_token_ids
    )


async def test_calls_of_mcp_have_their_events(service: Fixture, script: Script) -> None:
    client = await service(script["python"].format("1 / 0"), script["final"])
    text = (await client.post(PATH, json=body(tools=[PYTHON], stream=True))).text
    kinds = [event["type"].removeprefix("response.") for event in events_of(text)]
    assert kinds[2:8] == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.failed",
        "output_item.done",
    ]


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"server_label": "deepwiki"}, "tools[0].server_label"),
        ({"server_label": "browser", "server_url": "https://a.example"}, "tools[0].server_url"),
        ({"server_label": "browser", "require_approval": "always"}, "tools[0].require_approval"),
    ],
)
async def test_other_servers_are_refused_by_their_label(
    service: Fixture, script: Script, tool: dict[str, str], param: str
) -> None:
    client = await service(script["final"])
    response = await client.post(PATH, json=body(tools=[{"type": "mcp", **tool}]))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
