"""Synthetic dialogues: what a client sends, and what nano should reply."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from nano import replies
from nano.about import NO_TOOL, UNKNOWN, Intent, intents, think
from nano.results import leaves, make_result
from nano.small_talk import Copy, copy_task, unknown_question
from nano.tokens import decode, encode
from nano.tools import Request, ToolSpec, ask, known_tools, make_tool
from nano.words import Split, Words
from service.harmony.types import Conversation, Message, ReasoningEffort, Tool, ToolCall


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt, the reply it should get, and what of the reply is judged."""

    kind: str  # chat, unknown, no_tool, ask_back, copy, call or result
    prompt: Conversation
    reply: tuple[int, ...]
    request: Request | None = None  # of a call
    must_say: tuple[str, ...] = ()  # texts that the final answer must hold


@dataclass(frozen=True, slots=True)
class Mix:
    """How often each kind of dialogue is written, and with which tools."""

    kinds: Mapping[str, int]  # weights
    known_share: float  # of the tools asked for, those of the list rather than made up
    known_share_of_others: float
    others: tuple[int, ...]  # weights of offering 0, 1, 2 ... more tools


BROAD = Mix(
    {"tools": 52, "chat": 25, "unknown": 7, "no_tool": 5, "ask_back": 3, "copy": 10},
    known_share=0.45,
    known_share_of_others=0.35,
    others=(38, 27, 18, 10, 7),
)
# What people write, rather than what teaches copying.
NATURAL = Mix(
    {"tools": 70, "chat": 20, "unknown": 4, "no_tool": 1, "copy": 5},
    known_share=0.8,
    known_share_of_others=0.9,
    others=(55, 30, 15),
)


class Writer:
    """Writes dialogues of one side of the split, the same ones for the same seed."""

    def __init__(self, seed: int, split: Split, mix: Mix = BROAD) -> None:
        self.rng = random.Random(f"{seed}-{split}")
        self.words = Words(self.rng, split)
        self._mix = mix
        self._kinds: dict[str, Callable[[], list[Turn]]] = {
            "tools": self._tool_loop,
            "chat": self._chat,
            "unknown": self._unknown,
            "no_tool": self._no_tool,
            "ask_back": self._ask_back,
            "copy": self._copy,
        }

    def dialogue(self, kind: str | None = None) -> list[Turn]:
        """Write one dialogue of one or two turns."""
        if kind is None:
            kinds = self._mix.kinds
            kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        return self._kinds[kind]()

    def _tool_loop(self) -> list[Turn]:
        spec, tools = self._offer()
        request = ask(self.words, spec)
        said = self._opening() + request.text
        first = self._conversation(said, tools)
        turn = Turn("call", first, tuple(self._call(request, said, first)), request=request)
        return [turn, self._result(turn, request)]

    def _call(self, request: Request, said: str, conversation: Conversation) -> list[int]:
        analysis = replies.call_analysis(
            request.tool, request.arguments, conversation.reasoning_effort
        )
        return replies.call(analysis, request.tool, replies.arguments_ids(request.arguments, said))

    def _result(self, call: Turn, request: Request) -> Turn:
        content = make_result(self.words, request.arguments)
        effort = call.prompt.reasoning_effort
        messages = call.prompt.messages + _loop(request, content)
        final = replies.result_ids(content)
        reply = replies.answer(replies.result_analysis(effort), final)
        prompt = replace(call.prompt, messages=messages)
        return Turn("result", prompt, tuple(reply), must_say=tuple(leaves(content)))

    def _chat(self) -> list[Turn]:
        intent = self._intent()
        said = self._varied(intent)
        plan = "I know the answer." if intent.answer != "You are welcome!" else "I am polite."
        tools = self._offer()[1] if self.rng.random() < 0.25 else ()
        return [self._plain("chat", said, tools, (intent.act, plan, intent.answer))]

    def _varied(self, intent: Intent) -> str:
        said, style = self.words.choose(intent.train, intent.heldout), self.rng.random()
        if intent.name == "greeting" or style > 0.4:
            return said
        if style < 0.15:
            return said.rstrip("?!.").lower()
        opening = self.rng.choice(["Hello! ", "Hi! ", "Hi, ", "Hey, ", "Please: ", "Hello. "])
        return opening + said

    def _intent(self) -> Intent:
        weights = [6 if intent.name in ("greeting", "who", "can") else 1 for intent in intents()]
        return self.rng.choices(intents(), weights)[0]

    def _unknown(self) -> list[Turn]:
        said = unknown_question(self.words)
        content = ("asks for something else", "I know only about this service.", UNKNOWN)
        return [self._plain("unknown", said, (), content)]

    def _no_tool(self) -> list[Turn]:
        tools = self._offer()[1]
        if self.rng.random() < 0.5:
            said = unknown_question(self.words, with_tools=True)
        else:
            said = ask(self.words, make_tool(self.words)).text
        content = ("asks for something else", "None of the tools fits.", NO_TOOL)
        return [self._plain("no_tool", said, tools, content)]

    def _ask_back(self) -> list[Turn]:
        kind = self.rng.choice(["place", "person"])
        specs = (make_tool(self.words) for _ in range(10_000))
        spec = next(s for s in specs if [p.kind for p in s.params if p.is_required] == [kind])
        param = next(param for param in spec.params if param.is_required)
        bare = replace(spec, params=())
        said = ask(self.words, bare).text
        conversation = self._conversation(said, self._with_others(spec))
        analysis = think("leaves something out", "I ask for it.", conversation.reasoning_effort)
        final = [*encode("Please tell me the"), *encode(" "), *encode(param.name), *encode(".")]
        reply = replies.answer(encode(analysis), final)
        return [Turn("ask_back", conversation, tuple(reply), must_say=(param.name,))]

    def _copy(self) -> list[Turn]:
        task: Copy = copy_task(self.words)
        conversation = self._conversation(task.said, ())
        text = think(task.act, "I copy it exactly.", conversation.reasoning_effort)
        history = (*task.history, *conversation.messages[-1:])
        if task.history:
            conversation = replace(conversation, messages=history)
        if task.is_date:
            final = [*encode("Today is"), *encode(" "), *encode(conversation.current_date)]
            said = conversation.current_date
        else:
            final, said = [*encode(task.before), *task.ids], task.text
        reply = replies.answer(encode(text), [*final, *encode(task.after)])
        return [Turn("copy", conversation, tuple(reply), must_say=(said,))]

    def _plain(
        self, kind: str, said: str, tools: tuple[Tool, ...], content: tuple[str, str, str]
    ) -> Turn:
        act, plan, text = content
        conversation = self._conversation(said, tools)
        analysis = think(act, plan, conversation.reasoning_effort)
        reply = replies.answer(encode(analysis), encode(text))
        return Turn(kind, conversation, tuple(reply), must_say=(text,))

    def _offer(self) -> tuple[ToolSpec, tuple[Tool, ...]]:
        known = known_tools(self.words.split)
        is_known = self.rng.random() < self._mix.known_share
        spec = self.rng.choice(known) if is_known else make_tool(self.words)
        return spec, self._with_others(spec)

    def _with_others(self, spec: ToolSpec) -> tuple[Tool, ...]:
        specs = {spec.name: spec}
        weights = self._mix.others
        for _ in range(self.rng.choices(range(len(weights)), weights)[0]):
            other = self._other(spec)
            if other.name not in specs and not _rivals(spec.name, other.name):
                specs[other.name] = other
        offered = [one.tool() for one in specs.values()]
        self.rng.shuffle(offered)
        return tuple(offered)

    def _other(self, spec: ToolSpec) -> ToolSpec:
        if self.rng.random() < self._mix.known_share_of_others:
            return self.rng.choice(known_tools(self.words.split))
        return make_tool(self.words)

    def _conversation(self, said: str, tools: tuple[Tool, ...]) -> Conversation:
        efforts: list[ReasoningEffort] = ["low", "medium", "high"]
        effort = self.rng.choices(efforts, [30, 50, 20])[0]
        history = self._history(tools) if self.rng.random() < 0.2 else ()
        messages = (*self._instructions(), *history, Message("user", said))
        return Conversation(messages, self.words.date(), tools, effort)

    def _opening(self) -> str:
        if self.rng.random() > 0.12:
            return ""
        forms = ["Hello! ", "Hi, ", "I am in a hurry. ", f"I like {self.words.noun()}. "]
        return self.words.choose(forms, ["Hey there! ", "It is late. "])

    def _instructions(self) -> Iterator[Message]:
        words, style = self.words, self.rng.random()
        if style < 0.6:
            return
        if style < 0.8:
            text = "You are a helpful assistant."
        elif style < 0.98:
            forms = [f"Be {words.noun()}.", f"Answer in {words.noun()}.", "Answer briefly."]
            forms += [
                f"You are {words.person()}, an expert in {words.noun()}.",
                words.phrase(4, 12),
            ]
            forms += ["You are a helpful assistant with tools. Use them when they fit."]
            text = self.rng.choice(forms)
        else:
            text = words.phrase(80, 350)
        role = self.rng.choice(["system", "developer"])
        yield Message("system" if role == "system" else "developer", text)

    def _history(self, tools: tuple[Tool, ...]) -> tuple[Message, ...]:
        if tools and self.rng.random() < 0.6:
            spec = self._other(make_tool(self.words))
            request = ask(self.words, spec)
            content = make_result(self.words, request.arguments)
            final = Message("assistant", decode(replies.result_ids(content)))
            return (Message("user", request.text), *_loop(request, content), final)
        intent = self._intent()
        said = self.words.choose(intent.train, intent.heldout)
        pair = (Message("user", said), Message("assistant", intent.answer))
        return pair if self.rng.random() < 0.7 else (*pair, *self._history(()))


def _loop(request: Request, content: str) -> tuple[Message, ...]:
    call = ToolCall("call_1", request.tool, replies.arguments_text(request.arguments))
    return (
        Message("assistant", tool_calls=(call,)),
        Message("tool", content, tool_call_id="call_1"),
    )


def _rivals(name: str, other: str) -> bool:
    """Say whether a request for one tool could mean the other."""
    if any({name, other} <= group for group in _RIVALS):
        return True
    return bool(_nouns(name) & _nouns(other))


_RIVALS: tuple[set[str], ...] = (
    {"search", "web_search", "search_docs", "search_products", "get_news", "find_recipe"},
    {"add", "subtract", "multiply", "divide", "calculate"},
    {"now", "get_time", "get_current_time"},
    {"book_flight", "search_flights"},
    {"create_event", "create_task", "create_reminder", "create_ticket"},
)


def _nouns(name: str) -> set[str]:
    generic = {"get", "current", "search", "set", "create", "list", "send", "book"}
    return set(name.replace("-", "_").lower().split("_")) - generic
