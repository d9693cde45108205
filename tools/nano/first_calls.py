"""First requests: tools as quickstarts describe them, and what is asked of them.

Families of weather, arithmetic, lookups by an id, meetings and tools that only the instructions
name. Their texts are put together at random; training drops what is held out (quickstarts.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from service.conversation import Tool
from tools.nano.first_request import First, shuffled
from tools.nano.first_weather import weather
from tools.nano.first_words import (
    an_expression,
    in_words,
    listed,
    phone,
    phrase_of_day,
    phrase_of_time,
    say,
)
from tools.nano.sdk_tools import Schema, any_tool, make_tool, number, text
from tools.nano.values import Value
from tools.nano.words import Words

_SUMS = ("add", "multiply", "subtract", "divide")
_PAIRS = (
    *[("a", "b")] * 2,
    *[("x", "y"), ("left", "right"), ("first", "second"), ("n", "m")],
    *[("num1", "num2"), ("number1", "number2")],
)


def arithmetic(words: Words) -> First:
    """Ask what two numbers make, of a tool that adds, multiplies, subtracts or divides."""
    rng = words.rng
    wanted = rng.choice([*_SUMS, "add", "multiply"])
    kind = rng.choice(["integer", "integer", "number"])
    pair = rng.choice(_PAIRS)
    offered = [wanted, *rng.sample(_SUMS, rng.choice([0, 0, 1, 1, 2, 3]))]
    tools = {op: _sum_tool(words, op, pair, kind) for op in dict.fromkeys(offered)}
    values: list[Value] = [_operand(words, kind) for _ in pair]
    spoken = [str(value) for value in values]
    if rng.random() < 0.25:
        small = [rng.randint(0, rng.choice([12, 20, 99])) for _ in pair]
        values, spoken = list(small), [in_words(value) for value in small]
    said = say(words, f"ask {wanted}", a=spoken[0], b=spoken[1])
    arguments = dict(zip(pair, values, strict=True))
    system = say(words, "sum systems", op=wanted)
    name = tools[wanted].name
    return First(said, shuffled(words, list(tools.values())), name, arguments, system)


def _operand(words: Words, kind: str) -> Value:
    if kind == "number" and words.rng.random() < 0.3:
        return words.decimal()
    return words.rng.randint(0, words.rng.choice([12, 50, 99, 999, 9999, 9999, 99_999]))


_OPERANDS = (
    *[("The first number", "The second number"), ("First {k}", "Second {k}"), ("", ""), ("", "")],
    *[("first {k}", "second {k}"), ("The first {k}.", "The second {k}."), ("A {k}", "Another {k}")],
)


def _sum_tool(words: Words, op: str, pair: Sequence[str], kind: str) -> Tool:
    is_integer = kind == "integer" and words.rng.random() < 0.6
    noun = "integer" if is_integer else "number"
    told = words.rng.choice(_OPERANDS)
    described = [form.format(k=noun) for form in told]
    params = {key: number(kind, text_) for key, text_ in zip(pair, described, strict=True)}
    name, description = say(words, f"{op} names"), say(words, op, k=f"{noun}s")
    return make_tool(words, name, description, params, pair)


def expression(words: Words) -> First:
    """Ask for the value of an expression, which is copied as it is."""
    rng = words.rng
    name = say(words, "calculator names")
    key = rng.choice("expression expression expression expr query input formula".split())
    told = say(words, "expressions", k=key, n=rng.randint(2, 9))
    tools = [make_tool(words, name, say(words, "calculators"), {key: text(told)}, [key])]
    tools += [any_tool(words) for _ in range(rng.choice([0, 0, 0, 1, 2]))]
    asked = an_expression(words)
    said = say(words, "ask expression", e=asked)
    system = say(words, "expression systems", name=name)
    return First(said, shuffled(words, tools), name, {key: asked}, system)


def lookup(words: Words) -> First:
    """Ask for one of the things that tools tell about what an id names."""
    rng = words.rng
    thing = say(words, "things") if rng.random() < 0.7 else words.noun()
    usual = rng.choice(["status", "date", "address", "email", "price", words.noun()])
    parts = list(dict.fromkeys([usual, words.noun(), words.noun(), words.noun(), words.noun()]))
    key = rng.choice([f"{thing}_id", f"{thing}_id", f"{thing}_number", "id", f"{thing}Id"])
    params = {key: text(say(words, "ids", t=thing))}
    make = _tool_for_each if rng.random() < 0.5 else _tool_for_all
    tools = make(words, thing, parts[: rng.choice([3, 3, 4])], params)
    value = words.code()
    asked = f"{parts[0]} address" if parts[0] == "email" and rng.random() < 0.3 else parts[0]
    said = say(words, "ask lookup", w=asked, t=thing, v=value)
    return First(_headed(said), shuffled(words, tools), tools[0].name, {key: value})


def _headed(said: str) -> str:
    return said[0].upper() + said[1:]


def _tool_for_each(
    words: Words, thing: str, parts: Sequence[str], params: Mapping[str, Schema]
) -> list[Tool]:
    """Offer a tool for each part of a thing; the first is meant."""
    rng = words.rng
    verb = rng.choice(["get", "retrieve", "fetch", "lookup"])
    tools = []
    for part in parts[: rng.choice([1, 2, 2, 3])]:
        verb_told = rng.choice(["Get", "Gets", "Retrieves", "Look up"])
        told = f"{verb_told} {rng.choice(['the ', ''])}{part}"
        told += f" {rng.choice(['of', 'for'])} {rng.choice(['a', 'the'])} {thing}"
        name = f"{verb}_{thing}_{part}"
        tools.append(make_tool(words, name, told + rng.choice(["", "."]), params, list(params)))
    return tools


def _tool_for_all(
    words: Words, thing: str, parts: Sequence[str], params: Mapping[str, Schema]
) -> list[Tool]:
    """Offer a tool that tells all parts of a thing, before some that do other things."""
    rng = words.rng
    ends = [f"get_{thing}_info", f"get_{thing}_details", f"get_{thing}", f"find_{thing}"]
    told = f"{rng.choice(['Retrieves', 'Gets', 'Looks up'])} {thing} "
    told += (
        f"{rng.choice(['information', 'data', 'details'])} {rng.choice(['by', 'from', 'based on'])}"
    )
    told += f" the {thing} ID. {rng.choice(['Returns', 'Gives', 'Tells'])} the {thing}'s "
    told += listed(rng.sample(parts, len(parts))) + "."
    tools = [make_tool(words, rng.choice(ends), told, params, list(params))]
    other = words.noun()
    more = [
        ("cancel", other),
        ("get", other),
        ("update", other),
        ("cancel", thing),
        ("delete", thing),
    ]
    for verb, noun in rng.sample(more, rng.choice([0, 1, 2])):
        told = (
            f"{verb.capitalize()}s {rng.choice(['an', 'a', 'the'])} {noun} based on its {noun} ID. "
        )
        told += f"{words.phrase(2, 5).capitalize()}."
        name = f"{verb}_{noun}" + ("_details" if verb == "get" else "")
        tools.append(make_tool(words, name, told, {f"{noun}_id": text()}, [f"{noun}_id"]))
    return tools


def mine(words: Words) -> First:
    """Ask for something of one's own, saying in another sentence whose it is."""
    rng = words.rng
    what, of = words.noun(), words.noun()
    kind = rng.choice(["", "", words.noun() + " "]) + of
    article = "An" if kind[0] in "aeiou" else "A"
    first, second, value = words.made_up(), words.made_up(), words.made_up()
    told = rng.choice(
        [f"{article} {kind} like {first} or {second}", f"The {of}", f"The {of}, e.g. {first}", ""]
    )
    name = rng.choice([f"get_{what}", f"get_{what}", what, f"daily_{what}", f"read_{what}"])
    tool = make_tool(words, name, say(words, "mine", what=what, of=kind), {of: text(told)}, [of])
    said = say(words, "ask mine", what=what, of=of, v=value)
    tools = [tool, *([any_tool(words)] if rng.random() < 0.2 else [])]
    return First(said, shuffled(words, tools), name, {of: value})


def instructed(words: Words) -> First:
    """Say something that has no word in common with the tool, which the instructions name."""
    rng = words.rng
    verb, noun, key = words.noun(), words.noun(), words.noun()
    name = rng.choice([f"{verb}_{noun}", noun, f"{verb}_{noun}", f"{verb}{noun.capitalize()}"])
    value = rng.randint(1, rng.choice([12, 36, 99]))
    spoken = in_words(value) if rng.random() < 0.5 else str(value)
    values: dict[str, Value] = {key: value} if rng.random() < 0.6 else {}
    forms = [f"{verb} the {noun}", f"{verb.capitalize()} a {noun} and return the result.", ""]
    told = rng.choice([*forms, f"check if the {key} is a {noun}"])
    tools = [make_tool(words, name, told, {key: number("integer")} if values else {}, list(values))]
    few, Few = words.phrase(2, 6), words.phrase(3, 8).capitalize()
    drawn = {"name": name, "few": few, "Few": Few, "verb": verb, "noun": noun, "word": words.noun()}
    system = say(words, rng.choice(["instructions", "roles"]), **drawn)
    if rng.random() < 0.5:
        other, more = _beside_instructed(words)
        tools.append(other)
        system += more
    section = "instructed with a value" if values else "instructed"
    said = say(words, section, word=words.noun(), key=key, v=spoken, few=words.phrase(1, 3))
    return First(_headed(said), shuffled(words, tools), name, values, system)


def _beside_instructed(words: Words) -> tuple[Tool, str]:
    """Offer a tool that is not the first to call, at times with a sentence about it."""
    rng = words.rng
    if rng.random() < 0.4:
        name = rng.choice(["final_result", "final_answer", "done"])
        kind: Schema = {"type": rng.choice(["boolean", "string"])}
        told = "The final response which ends this conversation"
        return make_tool(words, name, told, {"response": kind}, ["response"]), ""
    noun, part = words.noun(), rng.choice(["name", "age", words.noun()])
    tool = make_tool(words, f"get_{noun}_{part}", f"Get the {noun}'s {part}.", {})
    more = f" {rng.choice(['Say', 'Tell', 'Put'])} the {noun}'s {part} at the end."
    return tool, more if rng.random() < 0.6 else ""


def meeting(words: Words) -> First:
    """Arrange something with several people, a date, a time and a topic, all copied."""
    rng = words.rng
    noun = say(words, "meetings") if rng.random() < 0.8 else words.noun()
    verb = say(words, "arrange") if rng.random() < 0.8 else words.noun()
    plain = verb.replace("_", " ").capitalize()
    people: Value = [words.person() for _ in range(rng.choice([1, 2, 2, 3]))]
    topic = rng.choice(
        [words.phrase(1, 3), f"{words.made_up()} {words.noun()}", f"Q2 {words.noun()}"]
    )
    day, hour = phrase_of_day(words), phrase_of_time(words)
    who: Schema = {"type": "array", "items": {"type": "string"}}
    if rng.random() < 0.5:
        who["description"] = f"List of {rng.choice(['people', 'names', 'guests'])}."
    offered: list[tuple[str, Schema, Value, str]] = [  # key, schema, value, how it is said
        (rng.choice("attendees participants people guests".split()), who, people, ""),
        (
            rng.choice(["date", "day"]),
            text(rng.choice(["", f"Date of the {noun} (e.g., '2024-07-29')"])),
            day,
            rng.choice([" for {}", " on {}"]),
        ),
        (
            rng.choice(["time", "start_time"]),
            text(rng.choice(["", f"Time of the {noun} (e.g., '15:00')"])),
            hour,
            " at {}",
        ),
        (
            rng.choice(["topic", "subject", "title"]),
            text(rng.choice(["", "What it is about"])),
            topic,
            rng.choice([" about {}", " about the {}", " on {}"]),
        ),
    ]
    kept = [
        offered[0],
        *(offered[i] for i in sorted(rng.sample([1, 2, 3], rng.choice([1, 2, 3, 3])))),
    ]
    said = f"{plain} {rng.choice(['a', 'the'])} {noun} with {listed(people, ' and ')}"
    said += "".join(form.format(value) for _, _, value, form in kept[1:]) + rng.choice(
        [".", "", "."]
    )
    told = rng.choice(
        [f"{plain}s a {noun} with people at a given time and date.", f"{plain} a {noun}", ""]
    )
    params = {key: schema for key, schema, _, _ in kept}
    tool = make_tool(words, f"{verb}_{noun}", told, params, list(params))
    return First(said, (tool,), tool.name, {key: value for key, _, value, _ in kept})


def contact(words: Words) -> First:
    """Save somebody's name and number."""
    rng = words.rng
    name = rng.choice(["save_contact", "store_person", "add_person", "create_lead"])
    drawn: dict[str, Value] = {
        "name": words.person(),
        "phone": phone(words),
        "email": words.email(),
    }
    kept = ["name", *rng.sample(["phone", "email"], rng.choice([1, 2]))]
    values = {key: drawn[key] for key in kept}
    said = f"{say(words, 'save')} {', '.join(map(str, values.values()))}"
    told = rng.choice(["Saves a person.", "Store somebody's data", ""])
    tool = make_tool(words, name, told, {key: text() for key in kept}, kept)
    return First(said, (tool,), name, values)


Family = Callable[[Words], First]
_FAMILIES: Mapping[Family, int] = {
    weather: 34, arithmetic: 16, expression: 9, lookup: 12, mine: 6, instructed: 12, meeting: 7,
    contact: 3,
}  # fmt: skip


def first_call(words: Words) -> First:
    """Draw one of a family."""
    return words.rng.choices(list(_FAMILIES), list(_FAMILIES.values()))[0](words)


def unmet(words: Words) -> First:
    """Ask one family for what only another does; `call` is empty."""
    offered, asked = words.rng.sample([weather, arithmetic, lookup, meeting], 2)
    return First(asked(words).said, offered(words).tools, "", {})
