"""Synthetic dialogues: what a client sends, and what nano should reply."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from service.conversation import Conversation, Message, ReasoningEffort, Tool, ToolCall
from tools.nano import replies
from tools.nano.about import NO_TOOL, UNKNOWN, Intent, intents, think
from tools.nano.alike import is_near, is_rival
from tools.nano.disguises import listed_tool, mostly_disguised
from tools.nano.extracts import described_tool, extract
from tools.nano.first_calls import first_call, unmet
from tools.nano.first_messages import is_kept_out
from tools.nano.first_minute import HINT, Said, first_minute, laid_out, wished
from tools.nano.made_up import make_tool
from tools.nano.names import LOOKUP_VERBS
from tools.nano.quickstarts import held_out_texts, known_names, published_record, varied
from tools.nano.requests import Request, ask
from tools.nano.results import leaves, make_result
from tools.nano.small_talk import Copy, copy_task, unknown_question
from tools.nano.spelling import UnspellableError, copy_of
from tools.nano.tokens import SPACE, decode, encode
from tools.nano.tools import ToolSpec, listed_tools
from tools.nano.values import Value
from tools.nano.wishes import wish_named
from tools.nano.words import Split, Words, is_held_out


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt, the reply it should get, and what of the reply is judged."""

    kind: str  # chat, unknown, no_tool, ask_back, copy, call, result or record
    prompt: Conversation
    reply: tuple[int, ...]
    request: Request | None = None  # of a call
    must_say: tuple[str, ...] = ()  # texts that the final answer must hold


# How often each kind of dialogue is written.
KINDS = {"tools": 55, "chat": 22, "unknown": 6, "no_tool": 6, "ask_back": 3, "copy": 8}
# In training also what people paste first; what is measured of it is published (quickstarts.yaml).
TRAIN_KINDS = {
    "tools": 110, "chat": 26, "unknown": 6, "no_tool": 9, "ask_back": 4, "copy": 10,
    "first": 26, "extract": 16, "minute": 110,
}  # fmt: skip
# The main part has fewer: while pieces swap their vectors, answers cannot be learnt.
MAIN_KINDS = {**KINDS, "first": 13, "extract": 8, "minute": 20}
_VARIED_SHARE = 0.1  # of the first requests, those of quickstarts.yaml itself
_UNMET_SHARE, _CHAT_SHARE = 0.06, 0.04  # of them: what no tool on offer does, or no tool is for
_PUBLISHED_SHARE = 0.04  # of the records, those of quickstarts.yaml
_AS_TOOL_SHARE = 0.45  # of the records, those that a tool takes
_EDGED_SHARE = 0.03  # of the requests: a line break before or after
_LISTED_SHARE = 0.5  # of the tools on offer, those of the list rather than made up
# Weights of offering 0, 1, 2 ... more tools; training has more of what is hard.
_NUM_OTHERS = {"train": (25, 28, 25, 13, 9), "heldout": (45, 27, 15, 8, 5)}
_SAME_VERB_SHARE = 0.25  # of the other tools that training makes up
_SIBLING_SHARE = 0.15  # of the made-up tools in training: offered with one of the same noun


class Writer:
    """Writes dialogues of one side of the split, the same ones for the same seed."""

    def __init__(self, seed: int, split: Split, is_late: bool = False) -> None:
        self.rng = random.Random(f"{seed}-{split}")
        self.words = Words(self.rng, split, is_late)
        self._kinds: dict[str, Callable[[], list[Turn]]] = {
            "tools": self._tool_loop,
            "chat": self._chat,
            "unknown": self._unknown,
            "no_tool": self._no_tool,
            "ask_back": self._ask_back,
            "copy": self._copy,
            "first": self._first,
            "extract": self._extract,
            "minute": self._minute,
        }
        self._shares = KINDS
        if split == "train":
            self._shares = TRAIN_KINDS if is_late else MAIN_KINDS

    def dialogue(self, kind: str | None = None) -> list[Turn]:
        """Write one dialogue of one or two turns, of words that can be spelled."""
        if kind is None:
            kind = self.rng.choices(list(self._shares), list(self._shares.values()))[0]
        while True:
            with suppress(UnspellableError):
                turns = self._kinds[kind]()
                if self.words.split == "heldout" or not _holds_what_is_kept_out(turns):
                    return turns

    def _tool_loop(self) -> list[Turn]:
        spec, tools, says_verb = self._offer_with_rivals()
        request = ask(self.words, spec, says_verb)
        said = laid_out(self.words, self._opening() + request.text, _EDGED_SHARE, is_edge=True)
        first = self._conversation(said, tools)
        reply = replies.call(request.tool, request.arguments, said, first.reasoning_effort)
        turn = Turn("call", first, tuple(reply), request=request)
        return [turn, self._result(turn, request)]

    def _result(self, call: Turn, request: Request) -> Turn:
        content = make_result(self.words, request.arguments)
        effort = call.prompt.reasoning_effort
        messages = call.prompt.messages + _loop(request, content)
        final = replies.result_ids(content)
        reply = replies.answer(replies.result_analysis(effort), final)
        prompt = replace(call.prompt, messages=messages)
        return Turn("result", prompt, tuple(reply), must_say=tuple(leaves(content)))

    def _first(self) -> list[Turn]:
        style = self.rng.random()
        if style < _UNMET_SHARE:
            unfit = unmet(self.words)
            content = ("asks for something else", "None of the tools fits.", NO_TOOL)
            return [self._plain("no_tool", unfit.said, unfit.tools, content)]
        if style < _UNMET_SHARE + _CHAT_SHARE:
            return self._chat(unmet(self.words).tools)
        first = varied(self.words) if self.rng.random() < _VARIED_SHARE else None
        first = first or first_call(self.words)
        prompt = self._bare(first.said, first.system, first.tools)
        reply = replies.call(first.call, first.values, first.said, prompt.reasoning_effort)
        request = Request(first.said, first.call, first.values)
        turn = Turn("call", prompt, tuple(reply), request=request)
        return [turn, self._result(turn, request)] if self.rng.random() < 0.15 else [turn]

    def _extract(self) -> list[Turn]:
        if self.rng.random() < _PUBLISHED_SHARE:
            prompt, values = published_record(self.words)
            return [_record(replace(prompt, current_date=self.words.date()), values)]
        found = extract(self.words)
        if self.rng.random() < _AS_TOOL_SHARE:
            tool = described_tool(self.words, found)
            prompt = self._bare(found.said, found.system, (tool,))
            reply = replies.call(tool.name, found.record, found.said, prompt.reasoning_effort)
            request = Request(found.said, tool.name, found.record)
            return [Turn("call", prompt, tuple(reply), request=request)]
        prompt = replace(self._bare(found.said, found.system), response_format=found.format())
        return [_record(prompt, found.record)]

    def _bare(self, said: str, system: str, tools: tuple[Tool, ...] = ()) -> Conversation:
        """What a quickstart sends: no history, instructions if there are any, medium effort."""
        role = self.rng.choice(["system", "system", "developer"])
        head = (
            (Message("developer" if role == "developer" else "system", system),) if system else ()
        )
        efforts: list[ReasoningEffort] = ["low", "medium", "high"]
        effort = self.rng.choices(efforts, [12, 78, 10])[0]
        return Conversation((*head, Message("user", said)), self.words.date(), tools, effort)

    def _chat(self, tools: tuple[Tool, ...] | None = None) -> list[Turn]:
        intent = self._intent()
        said = laid_out(self.words, self._varied(intent))
        plan = "I know the answer." if intent.answer != "You are welcome!" else "I am polite."
        if tools is None:
            tools = self._offer()[1] if self.rng.random() < 0.25 else ()
        return [self._plain("chat", said, tools, (intent.act, plan, intent.answer))]

    def _varied(self, intent: Intent) -> str:
        said, style = intent.ask(self.words), self.rng.random()
        if style < 0.2:
            return said.rstrip("?!.").lower()
        if intent.name == "greeting" or style > 0.6:
            return said
        opening = self.words.opening("openings")
        return opening + (said if style < 0.45 else said[0].lower() + said[1:])

    def _intent(self) -> Intent:
        weights = [6 if intent.name in ("greeting", "who", "can") else 1 for intent in intents()]
        return self.rng.choices(intents(), weights)[0]

    def _unknown(self) -> list[Turn]:
        topic, said = unknown_question(self.words)
        if topic:
            prompt = self._conversation(said, ())
            return [_answered("unknown", prompt, wished(said, wish_named(topic)))]
        plan = "I know only about this service."
        turn = self._plain("unknown", said, (), ("asks for something else", plan, UNKNOWN))
        hint = (*turn.reply[:-1], SPACE, *copy_of(encode(HINT)), turn.reply[-1])
        return [replace(turn, reply=hint)]

    def _minute(self) -> list[Turn]:
        """What people type first: no tools, often nothing else in the prompt."""
        found = first_minute(self.words)
        prompt = self._conversation(found.said, ())
        if self.rng.random() < 0.6:
            prompt = self._bare(found.said, "")
        return [_answered("minute", prompt, found)]

    def _no_tool(self) -> list[Turn]:
        tools = self._offer()[1]
        said = self._unfitting(tools)
        content = ("asks for something else", "None of the tools fits.", NO_TOOL)
        return [self._plain("no_tool", said, tools, content)]

    def _unfitting(self, tools: tuple[Tool, ...]) -> str:
        """Ask for what none of the tools does."""
        style = self.rng.random()
        if style < 0.35:
            return unknown_question(self.words, with_tools=True)[1]
        if style < 0.7:
            return ask(self.words, make_tool(self.words)).text
        listed = listed_tools(self.words.split)
        specs = [spec for spec in listed if not any(is_near(spec.name, t.name) for t in tools)]
        if not specs:
            return self._unfitting(tools)
        # As often in disguise as on offer: its own words would tell that nothing fits.
        return ask(self.words, mostly_disguised(self.words, self.rng.choice(specs))).text

    def _ask_back(self) -> list[Turn]:
        kind = self.rng.choice(["place", "person"])
        specs = (make_tool(self.words) for _ in range(10_000))
        spec = next(s for s in specs if [p.kind for p in s.params if p.is_required] == [kind])
        param = next(param for param in spec.params if param.is_required)
        bare = replace(spec, params=())
        said = ask(self.words, bare).text
        conversation = self._conversation(said, self._with_others(spec))
        analysis = think("leaves something out", "I ask for it.", conversation.reasoning_effort)
        asked = copy_of(encode(param.name))
        final = [*encode("Please tell me the"), SPACE, *asked, *encode(".")]
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
            date = copy_of(encode(conversation.current_date))
            final = [*encode("Today is"), SPACE, *date]
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
        spec = self._draw_tool()
        return spec, self._with_others(spec)

    def _offer_with_rivals(self) -> tuple[ToolSpec, tuple[Tool, ...], bool]:
        """Offer tools to call one of; in training at times one that only its verb tells apart."""
        spec = self._draw_tool()
        is_action = spec.verb and spec.verb not in LOOKUP_VERBS and spec.name.startswith(spec.verb)
        if self.words.split == "heldout" or not is_action or self.rng.random() > _SIBLING_SHARE:
            return spec, self._with_others(spec), False
        sibling = make_tool(self.words, noun=spec.thing.split()[0])
        return spec, self._with_others(spec, sibling), True

    def _with_others(self, spec: ToolSpec, *more: ToolSpec) -> tuple[Tool, ...]:
        specs = {one.name: one for one in (*more, spec)}
        weights = _NUM_OTHERS[self.words.split]
        for _ in range(self.rng.choices(range(len(weights)), weights)[0]):
            other = self._draw_other(spec)
            if other.name not in specs and not is_rival(spec.name, other.name):
                specs[other.name] = other
        offered = [one.tool() for one in specs.values()]
        self.rng.shuffle(offered)
        return tuple(offered)

    def _draw_other(self, spec: ToolSpec) -> ToolSpec:
        if self.words.split == "train" and spec.verb and self.rng.random() < _SAME_VERB_SHARE:
            return make_tool(self.words, verb=spec.verb)
        return self._draw_tool()

    def _draw_tool(self) -> ToolSpec:
        is_listed = self.rng.random() < _LISTED_SHARE
        return listed_tool(self.words) if is_listed else make_tool(self.words)

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
            spec = self._draw_tool()
            request = ask(self.words, spec)
            content = make_result(self.words, request.arguments)
            final = Message("assistant", decode(replies.result_ids(content)))
            return (Message("user", request.text), *_loop(request, content), final)
        intent = self._intent()
        said = intent.ask(self.words)
        pair = (Message("user", said), Message("assistant", intent.answer))
        return pair if self.rng.random() < 0.7 else (*pair, *self._history(()))


def _answered(kind: str, prompt: Conversation, found: Said) -> Turn:
    """The reply to a first message."""
    effort = prompt.reasoning_effort
    act, plan = "asks for something else", "I know only about this service."
    if found.is_known:
        act, plan = "tells me something", "I know the answer."
    if found.steps:
        analysis = replies.sum_analysis(found.steps, effort)
    elif found.wish:
        analysis = replies.wish_analysis(found.wish, plan, effort)
    else:
        analysis = encode(think(act, plan, effort))
    reply = replies.answer(analysis, list(found.ids))
    return Turn(kind, prompt, tuple(reply), must_say=(found.must_say,))


def _record(prompt: Conversation, values: dict[str, Value]) -> Turn:
    reply = replies.record(values, prompt.messages[-1].content, prompt.reasoning_effort)
    return Turn("record", prompt, tuple(reply), must_say=(replies.arguments_text(values),))


def _holds_what_is_kept_out(turns: list[Turn]) -> bool:
    """Say whether a dialogue holds a text that is kept to measure with, or a held-out name."""
    prompt = turns[-1].prompt
    texts = {message.content for message in prompt.messages if message.role == "user"}
    texts |= {tool.description for tool in prompt.tools}
    names = {tool.name for tool in prompt.tools} - known_names()
    is_measured = not texts.isdisjoint(held_out_texts()) or any(map(is_kept_out, texts))
    return is_measured or any(map(is_held_out, names))


def _loop(request: Request, content: str) -> tuple[Message, ...]:
    call = ToolCall("call_1", request.tool, replies.arguments_text(request.arguments))
    return (
        Message("assistant", tool_calls=(call,)),
        Message("tool", content, tool_call_id="call_1"),
    )
