"""First requests: tools as quickstarts describe them, and what is asked of them.

Families of weather, arithmetic, lookups by an id, meetings and tools that only the instructions
name. Their texts are put together at random; training drops what is held out (nano/quickstarts.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nano.first_words import (
    a_place,
    decorated,
    in_words,
    long_number,
    phone,
    phrase_of_day,
    phrase_of_time,
    words_of,
)
from nano.values import Value
from nano.words import Words
from service.harmony.types import Tool


@dataclass(frozen=True, slots=True)
class First:
    """What a client sends first, and the call that answers it."""

    said: str
    tools: tuple[Tool, ...]
    call: str
    values: dict[str, Value]
    system: str = ""


Schema = dict[str, Any]


def make_tool(
    words: Words, name: str, description: str, params: Schema, required: Sequence[str] = ()
) -> Tool:
    """Return a tool as an SDK would send it: with its description as it is, or as a docstring."""
    schema: Schema = {"type": "object", "properties": params, "required": list(required)}
    if not params and words.rng.random() < 0.5:
        return Tool(name, description)
    if words.rng.random() < 0.4:
        schema["additionalProperties"] = False
    if words.rng.random() < 0.2:  # pydantic's
        titled = {key: {"title": key.replace("_", " ").title(), **told} for key, told in params.items()}
        schema |= {"properties": titled, "title": words.rng.choice([f"{name}_args", f"{name}Arguments", name])}
    return Tool(name, decorated(words, name, description, params), schema)


def text(description: str = "") -> Schema:
    """Return the schema of a string."""
    return {"type": "string", "description": description} if description else {"type": "string"}


def number(kind: str, description: str = "") -> Schema:
    """Return the schema of a number."""
    return {"type": kind, "description": description} if description else {"type": kind}


# Weather.

_FETCH = "Get|Get|Get|Gets|Retrieve|Retrieves|Fetch|Fetches|Return|Returns|Look up|Find|Check|Provides".split("|")
_WEATHER = "the weather|the current weather|current weather|weather|the temperature|the current temperature|current temperature|weather information|the current weather information|the weather conditions|the weather report|the current weather report|the latest weather".split("|")
_WHERE = "a city|a given city|a location|a given location|the given location|a specific location|a specified location|the specified city|a specified city|a specific city|the provided location|the location|any place|a place|one city".split("|")
_WEATHER_NAMES = "get_weather|get_weather|get_weather|get_current_weather|get_current_weather|weather|getWeather|getCurrentWeather|get_temperature|get_current_temperature|fetch_weather|check_weather|weather_lookup|get_weather_info|current_weather|weather_tool".split("|")
_UNITS = [("celsius", "fahrenheit"), ("celsius", "fahrenheit"), ("c", "f"), ("C", "F"), ("metric", "imperial"), ("fahrenheit", "celsius")]
_ASK_WEATHER = (
    "What is the weather in {p}?|What's the weather in {p}?|What is the weather like in {p}?|"
    "What's the weather like in {p}?|How is the weather in {p}?|How's the weather in {p}?|"
    "what is the weather in {p}|whats the weather in {p}|What is the weather in {p} {n}?|"
    "What's the weather in {p} {n}?|What is the weather like in {p} {n}?|"
    "What's the weather like in {p} {n}?|What is the weather {n} in {p}?|"
    "How is the weather in {p} {n}?|Hey, what's the weather in {p} {n}?|"
    "Hey, what is it like in {p} {n}?|Tell me the weather in {p}.|Weather in {p}|{p} weather|"
    "Can you tell me the weather in {p}?|I need the weather for {p}.|Check the weather in {p}|"
    "What is the current weather in {p}?|Is it raining in {p}?|Is it sunny in {p} {n}?|"
    "Do I need an umbrella in {p}?|Will it rain in {p} {n}?|How warm is it in {p}?|"
    "How hot is it in {p} {n}?|How cold is it in {p}?|I am in {p}. What is the weather like?|"
    "What should I wear in {p} {n}?|Show me the weather of {p}"
).split("|")
_ASK_TEMPERATURE = (
    "What is the temperature in {p}?|What's the temperature in {p}?|"
    "What is the temperature in {p} {n}?|What's the temperature in {p} {n}?|"
    "Hey, what's the temperature in {p} {n}?|How warm is it in {p} {n}?|How cold is it in {p}?|"
    "what is the temperature in {p}|Tell me the temperature in {p}.|Temperature in {p}?|"
    "What is the current temperature in {p}?|How hot is it in {p}?"
).split("|")
_NOW = "today|right now|now|this morning|at the moment|currently|tonight".split("|")


def weather(words: Words) -> First:
    """Ask for the weather or the temperature of a place."""
    rng = words.rng
    name = rng.choice(_WEATHER_NAMES)
    is_warmth = "temperature" in name
    tool, place_key, unit = _weather_tool(words, name, is_warmth)
    place = a_place(words)
    asked = _ASK_TEMPERATURE if is_warmth or rng.random() < 0.15 else _ASK_WEATHER
    said = rng.choice(asked).format(p=place, n=rng.choice(_NOW))
    values: dict[str, Value] = {place_key: place}
    if unit:
        key, choices, is_required = unit
        if rng.random() < 0.25:
            values[key] = rng.choice(choices)
            said = said.rstrip("?.") + rng.choice([f" in {values[key]}?", f" in {values[key]}", f", in {values[key]} please"])
        elif is_required:
            values[key] = choices[0]
    tools = [tool, *_beside_weather(words, name)]
    rng.shuffle(tools)
    return First(said, tuple(tools), name, values, _weather_system(words))


def _weather_system(words: Words) -> str:
    if words.rng.random() < 0.65:
        return ""
    return words.rng.choice([
        "You are a helpful assistant", "You are a helpful assistant.", "You are a helpful agent.",
        "You are a helpful weather assistant.", "You are a bot that answers weather questions.",
        "You only respond in haikus.", "Use a friendly tone.", "Always respond in riddles",
        "You can use tools.", f"You answer in {words.noun()}.", "Be concise.",
        "You are a chatbot that has tools. Keep it short.",
    ])  # fmt: skip


def _weather_tool(
    words: Words, name: str, is_warmth: bool
) -> tuple[Tool, str, tuple[str, tuple[str, ...], bool] | None]:
    rng = words.rng
    key = rng.choice(["location", "location", "city", "city", "place", "town"])
    what = rng.choice([w for w in _WEATHER if "temperature" in w] if is_warmth else _WEATHER)
    told = f"{rng.choice(_FETCH)} {what} {rng.choice(['in', 'for', 'of', 'at', 'for'])} {rng.choice(_WHERE)}"
    if rng.random() < 0.1:
        told = f"{rng.choice(_FETCH)} {what}"
    told += rng.choice(["", ".", ".", ".", "", " in celsius.", " (fahrenheit)", ", the user should supply it first.", " today."])
    if rng.random() < 0.12:
        told = ""
    params = {key: text(_describe_place(words, key))}
    required, unit = [key], None
    if rng.random() < 0.45:
        unit_key = rng.choice(["unit", "unit", "units", "format", "format", "temperature_unit", "scale"])
        choices = rng.choice(_UNITS)
        schema: Schema = {"type": "string", "enum": list(choices)}
        if rng.random() < 0.5:
            schema["description"] = rng.choice([
                "The unit to use.", "The temperature unit", "Unit for the output",
                f"The {unit_key} to return it in, e.g. '{choices[0]}' or '{choices[1]}'",
                "The unit of the temperature, inferred from the location.", "Units that it will be returned in.",
            ])  # fmt: skip
        if rng.random() < 0.2:
            schema["default"] = choices[0]
        is_required = rng.random() < 0.5
        required += [unit_key] * is_required
        params[unit_key] = schema
        unit = (unit_key, choices, is_required)
    if rng.random() < 0.08 and unit is None:
        required = []
    return make_tool(words, name, told, params, required), key, unit


def _describe_place(words: Words, key: str) -> str:
    rng = words.rng
    first, second = words.place(), words.place()
    code = "".join(rng.choices("ABCDEFGHIKLMNOPRSTVWY", k=2))
    return rng.choice([
        "", "", "", f"The {key}", f"The name of the {key}", f"The {key} name, e.g. {first}",
        "The city and state, e.g. San Francisco, CA", f"The city and state, e.g. {first}, {code}",
        f"City and country e.g. {first}, {second}", f"City and state, e.g., '{first}, {code}'",
        f"The city and country, e.g. `{first}, {code}`, or `{second}, {first}`",
        f"The {key} to get the weather for", f"The {key} to get it for, e.g. {first}, {code}",
        f'The {key} to look at, in the format "City, Country"', f"A {key}", f"{key.capitalize()} (e.g. \"{first}\")",
    ])  # fmt: skip


def _beside_weather(words: Words, name: str) -> list[Tool]:
    """Offer tools that look alike beside the one that is meant."""
    rng = words.rng
    found: list[Tool] = []
    if rng.random() < 0.55:
        return found
    for kind in rng.sample(["time", "where", "many", "wind", "other"], rng.choice([1, 1, 2])):
        place = text(_describe_place(words, "city"))
        if kind == "time":
            told = f"{rng.choice(_FETCH)} the current time {rng.choice(['in', 'for'])} {rng.choice(_WHERE)}."
            found.append(make_tool(words, rng.choice(["get_time", "get_current_time", "clock"]), told, {"city": place}, ["city"]))
        elif kind == "where":
            told = rng.choice(["Gets the place of the user.", "Get the user's location", "Where the user is"])
            found.append(make_tool(words, rng.choice(["get_location", "where_am_i", "get_user_location"]), told, {}))
        elif kind == "many" and "weathers" not in name:
            many = {"type": "array", "items": {"type": "string"}, "description": "List of places"}
            told = f"{rng.choice(_FETCH)} the current weather in {rng.choice(['a list of locations', 'several cities', 'many places'])}."
            found.append(make_tool(words, rng.choice(["get_multiple_weathers", "get_weathers", "compare_weather"]), told, {"locations": many}, ["locations"]))
        elif kind == "wind":
            noun = rng.choice(["wind speed", "air quality", "humidity", "tides", words.noun()])
            told = f"{rng.choice(_FETCH)} the current {noun} at {rng.choice(_WHERE)}."
            found.append(make_tool(words, "get_current_" + noun.replace(" ", "_"), told, {"location": place}, ["location"]))
        else:
            noun, verb = words.noun(), words.noun()
            found.append(make_tool(words, f"{verb}_{noun}", f"{verb.capitalize()} the {noun}.", {words.noun(): text()}))
    return [tool for tool in found if tool.name != name]


# Arithmetic.

_PAIRS = [("a", "b"), ("a", "b"), ("a", "b"), ("x", "y"), ("left", "right"), ("first", "second"), ("num1", "num2"), ("number1", "number2"), ("n", "m")]
_SUMS: dict[str, tuple[list[str], list[str], list[str]]] = {
    # names, descriptions, requests
    "add": (
        ["add", "add", "sum", "add_numbers", "add_two_numbers", "plus", "addition", "sum_numbers"],
        ["Add two {k}", "Add two {k}.", "Adds a and b.", "Adds {k}", "Add {k} together.", "Returns the sum of two {k}.", "Useful for adding two {k}.", "Sum of two {k}", "Add two {k} together and return the sum"],
        ["What is {a} + {b}?", "What is {a} plus {b}?", "what is {a}+{b}", "What's {a} plus {b}?", "Add {a} and {b}.", "{a} + {b}", "How much is {a} + {b}?", "What is the sum of {a} and {b}?", "Calculate {a} + {b}", "Add {a} to {b}", "Sum {a} and {b}"],
    ),
    "multiply": (
        ["multiply", "multiply", "multiply_numbers", "multiply_two_numbers", "times", "product", "mul"],
        ["Multiply two {k}", "Multiply two {k}.", "Multiply a and b.", "Multiplies two {k} together.", "Returns the product of two {k}.", "Useful for multiplying {k}.", "Product of two {k}"],
        ["What is {a} * {b}?", "What is {a} times {b}?", "what is {a}*{b}", "What's {a} times {b}?", "Multiply {a} by {b}.", "{a} * {b}", "How much is {a} x {b}?", "What is the product of {a} and {b}?", "Calculate {a} * {b}", "What is {a} multiplied by {b}?"],
    ),
    "subtract": (
        ["subtract", "subtract", "subtract_two_numbers", "minus", "difference"],
        ["Subtract two {k}", "Subtract two {k}.", "Subtract b from a.", "Subtracts {k}", "Returns the difference of two {k}."],
        ["What is {a} - {b}?", "What is {a} minus {b}?", "what is {a}-{b}", "What's {a} minus {b}?", "{a} - {b}", "How much is {a} - {b}?", "Calculate {a} minus {b}"],
    ),
    "divide": (
        ["divide", "divide", "divide_numbers", "quotient"],
        ["Divide two {k}", "Divide a by b.", "Divides one number by another", "Returns the quotient of two {k}."],
        ["What is {a} / {b}?", "What is {a} divided by {b}?", "Divide {a} by {b}.", "{a} / {b}", "How much is {a} / {b}?", "Calculate {a} divided by {b}"],
    ),
}  # fmt: skip


def arithmetic(words: Words) -> First:
    """Ask what two numbers make, of a tool that adds, multiplies, subtracts or divides."""
    rng = words.rng
    wanted = rng.choice([*_SUMS, "add", "multiply"])
    kind = rng.choice(["integer", "integer", "number"])
    pair = rng.choice(_PAIRS)
    offered = {wanted, *rng.sample(sorted(_SUMS), rng.choice([0, 0, 1, 1, 2, 3]))}
    tools = {op: _sum_tool(words, op, pair, kind) for op in sorted(offered)}
    first, second = (_operand(words, kind) for _ in pair)
    spoken_ = [str(first), str(second)]
    if isinstance(first, int) and isinstance(second, int) and rng.random() < 0.3:
        first, second = (rng.randint(0, rng.choice([12, 20, 99])) for _ in pair)
        spoken_ = [in_words(first), in_words(second)]
    said = rng.choice(_SUMS[wanted][2]).format(a=spoken_[0], b=spoken_[1])
    shuffled = rng.sample(list(tools.values()), len(tools))
    system = ""
    if rng.random() < 0.25:
        system = rng.choice(["You are a helpful assistant.", f"You are a helpful assistant that can {wanted} numbers.", "You are good at math.", "You are a calculator."])
    return First(said, tuple(shuffled), tools[wanted].name, dict(zip(pair, (first, second), strict=True)), system)


def _operand(words: Words, kind: str) -> int | float:
    if kind == "number" and words.rng.random() < 0.3:
        return words.decimal()
    return words.rng.randint(0, words.rng.choice([12, 50, 99, 999, 9999, 9999, 99_999]))


def _sum_tool(words: Words, op: str, pair: Sequence[str], kind: str) -> Tool:
    rng = words.rng
    names, told, _ = _SUMS[op]
    noun = "integers" if kind == "integer" and rng.random() < 0.6 else "numbers"
    forms = [
        ("The first number", "The second number"), ("First integer", "Second integer"),
        ("first number", "second number"), ("", ""), ("", ""), ("The first {k}.", "The second {k}."),
        ("A number", "Another number"),
    ]  # fmt: skip
    described = rng.choice(forms)
    params = {
        key: number(kind, text_.format(k=noun[:-1])) for key, text_ in zip(pair, described, strict=True)
    }
    description = rng.choice(told).format(k=noun) if rng.random() < 0.88 else ""
    return make_tool(words, rng.choice(names), description, params, pair)


_CALCULATORS = "calculator|calculate|calculator|evaluate|math|compute|eval_expression|calc|evaluate_expression|solve".split("|")
_CALCULATES = "A calculator.|Evaluate an expression.|Evaluates arithmetic expressions|Calculate the result of a mathematical expression.|Performs arithmetic.|A calculator for basic arithmetic.|Compute a math expression|Calculates what is asked.|Do math|Useful for math questions.|Perform mathematical calculations|".split("|")
_ASK_EXPRESSION = "What is {e}?|What is {e}?|What's {e}?|Calculate {e}|calculate {e}|What is the result of {e}?|Evaluate {e}|Compute {e}.|{e}|{e} = ?|How much is {e}?|Please calculate {e}.|Can you calculate {e}?|Solve {e}|what is {e}".split("|")


def expression(words: Words) -> First:
    """Ask for the value of an expression, which is copied as it is."""
    rng = words.rng
    name = rng.choice(_CALCULATORS)
    key = rng.choice(["expression", "expression", "expression", "expr", "query", "input", "formula"])
    told = rng.choice([
        "", "The expression to evaluate", "A mathematical expression", f"The {key} to calculate",
        "The math expression to evaluate, e.g. 2 + 2", f"The expression (e.g., '{rng.randint(2, 9)} + 3 * 4').",
    ])  # fmt: skip
    tools = [make_tool(words, name, rng.choice(_CALCULATES), {key: text(told)}, [key])]
    if rng.random() < 0.3:
        tools += [_other(words) for _ in range(rng.choice([1, 2]))]
        rng.shuffle(tools)
    asked = _expression(words)
    system = ""
    if rng.random() < 0.3:
        system = rng.choice([f"You are a calculator. Use {name} for math.", "You are a helpful assistant.", f"Use the {name} tool to answer."])
    return First(rng.choice(_ASK_EXPRESSION).format(e=asked), tuple(tools), name, {key: asked}, system)


def _expression(words: Words) -> str:
    rng = words.rng
    terms = [long_number(words) for _ in range(rng.choice([2, 2, 2, 3, 3, 4]))]
    tight = rng.random() < 0.15
    marks = [rng.choice("+-*/*+") for _ in terms[1:]]
    at = rng.randrange(len(terms) - 1) if len(terms) > 2 and rng.random() < 0.4 else -1
    found = ""
    for index, term in enumerate(terms):
        one = f"({term}" if index == at else f"{term})" if index == at + 1 and at >= 0 else term
        mark = marks[index - 1] if index else ""
        found += f"{mark}{one}" if tight or not index else f" {mark} {one}"
    return found


def _other(words: Words) -> Tool:
    noun, verb = words.noun(), words.noun()
    key = words.noun()
    return make_tool(words, f"{verb}_{noun}", f"{verb.capitalize()} the {noun}.", {key: text()}, [key])


# Lookups by an id, and of what somebody is.

_ASK_STATUS = (
    "What's the {w} of my {t} {v}?|What is the {w} of {t} {v}?|Tell me the {w} of {t} {v}.|"
    "Can you tell me the {w} for {t} {v}?|Can you tell me the {w} of {t} {v}?|{w} of {t} {v}?|"
    "I need the {w} for {t} {v}|Could you look up the {w} for my {t} {v}?|Please check the {w} of {t} {v}.|"
    "Hi, can you tell me the {w} for my {t}? It is {v}."
).split("|")


def lookup(words: Words) -> First:
    """Ask for one of the things that tools tell about what an id names."""
    rng = words.rng
    thing = rng.choice(["order", "customer", "transaction", "invoice", "ticket", "user", "booking", "payment", words.noun(), words.noun(), words.noun()])
    parts = [rng.choice(["status", "date", "address", "email", "price", words.noun()]), *words_of(words, 4)]
    parts = list(dict.fromkeys(parts))
    key = rng.choice([f"{thing}_id", f"{thing}_id", f"{thing}_number", "id", f"{thing}Id"])
    told = rng.choice([f"The {thing} id.", f"The unique identifier for the {thing}", f"ID of the {thing}", "", f"The {thing}'s ID."])
    tools = []
    call = ""
    value = words.code()
    wanted = parts[0]
    if rng.random() < 0.5:  # one tool for each of them
        prefix = rng.choice(["get", "retrieve", "fetch", "lookup"])
        for part in parts[: rng.choice([1, 2, 2, 3])]:
            name = f"{prefix}_{thing}_{part}"
            description = f"{rng.choice(['Get', 'Gets', 'Retrieves', 'Look up'])} {rng.choice(['the ', ''])}{part} {rng.choice(['of', 'for'])} {rng.choice(['a', 'the'])} {thing}{rng.choice(['', '.'])}"
            tools.append(make_tool(words, name, description, {key: text(told)}, [key]))
            call = call or name
    else:  # one tool that tells all of them, beside others
        listed = rng.sample(parts[:3], 3)
        call = rng.choice([f"get_{thing}_info", f"get_{thing}_details", f"get_{thing}", f"lookup_{thing}", f"find_{thing}"])
        description = f"{rng.choice(['Retrieves', 'Gets', 'Looks up'])} {thing} {rng.choice(['information', 'data', 'details'])} {rng.choice(['by', 'from', 'based on'])} the {thing} ID. {rng.choice(['Returns', 'Gives', 'Tells'])} the {thing}'s {listed[0]}, {listed[1]}, and {listed[2]}."
        tools.append(make_tool(words, call, description, {key: text(told)}, [key]))
        other = words.noun()
        more = [f"cancel_{other}", f"get_{other}_details", f"update_{other}", f"cancel_{thing}", f"delete_{thing}"]
        for name in rng.sample(more, rng.choice([0, 1, 2])):
            verb, noun = name.split("_")[:2]
            described = f"{verb.capitalize()}s {rng.choice(['an', 'a', 'the'])} {noun} {rng.choice(['by', 'based on'])} {rng.choice(['its', 'the provided'])} {noun} ID. {words.phrase(2, 5).capitalize()}."
            tools.append(make_tool(words, name, described, {f"{noun}_id": text()}, [f"{noun}_id"]))
    said = rng.choice(_ASK_STATUS).format(w=wanted, t=thing, v=value)
    tools = list({tool.name: tool for tool in tools}.values())
    rng.shuffle(tools)
    return First(said[0].upper() + said[1:], tuple(tools), call, {key: value})


def mine(words: Words) -> First:
    """Ask for something of one's own, saying in another sentence whose it is."""
    rng = words.rng
    what, of = words.noun(), words.noun()
    value, other = words.made_up(), words.made_up()
    adjective = rng.choice(["", "", words.noun() + " "])
    told = rng.choice([f"{'An' if of[0] in 'aeiou' else 'A'} {adjective}{of} like {words.made_up()} or {other}", f"The {of}", f"The {of}, e.g. {other}", ""])
    description = rng.choice([
        f"Get today's {what} for a {adjective}{of}.", f"Get the {what} of a {adjective}{of}.", f"Returns the {what} for the given {of}",
        f"Daily {what} for a {of}", f"Tells your {what}", "",
    ])  # fmt: skip
    name = rng.choice([f"get_{what}", f"get_{what}", what, f"daily_{what}", f"read_{what}"])
    tools = [make_tool(words, name, description, {of: text(told)}, [of])]
    said = rng.choice([
        f"What is my {what}? I am a {value}.", f"What is my {what}? I am {value}.", f"What's my {what}? I'm a {value}.",
        f"I am a {value}. What is my {what}?", f"My {of} is {value}. What is my {what} today?", f"Tell me my {what}, I am a {value}",
        f"What is my {what} today? My {of} is {value}.", f"I'm {value}, what's my {what}?", f"Read me the {what} for {value}.",
    ])  # fmt: skip
    if rng.random() < 0.2:
        tools.append(_other(words))
    return First(said, tuple(tools), name, {of: value})


# What only the instructions name, and requests with several values.


def instructed(words: Words) -> First:
    """Say something that has no word in common with the tool, which the instructions name."""
    rng = words.rng
    verb, noun = words.noun(), words.noun()
    name = rng.choice([f"{verb}_{noun}", noun, f"{verb}_{noun}", f"{verb}{noun.capitalize()}"])
    thing = words.noun()
    value = rng.randint(1, rng.choice([12, 36, 99]))
    spoken_ = in_words(value) if rng.random() < 0.5 else str(value)
    has_value = rng.random() < 0.6
    params = {thing: number("integer")} if has_value else {}
    tools = [make_tool(words, name, rng.choice([f"{verb} the {noun}", f"{verb.capitalize()} a {noun} and return the result.", f"check if the {thing} is a {noun}", ""]), params, list(params))]
    style = rng.random()
    if style < 0.5:
        system = rng.choice([
            f"Use the `{name}` {rng.choice(['function', 'tool'])} to see if {words.phrase(2, 5)}.",
            f"Use the `{name}` {rng.choice(['function', 'tool'])} to {words.phrase(2, 6)}.",
            f"Call {name} for every message.", f"Always use the {name} tool.", f"Use {name}.",
        ])  # fmt: skip
    else:
        system = rng.choice([
            f"You're a {noun} {words.noun()}, you should {verb} the {noun} and {words.phrase(3, 8)}.",
            f"You are a {noun}. First {verb} the {noun}, then {words.phrase(2, 6)}. {words.phrase(3, 8).capitalize()}.",
            f"You should {verb} the {noun} when the user {words.phrase(1, 3)}. {words.phrase(3, 8).capitalize()}.",
        ])  # fmt: skip
    if rng.random() < 0.5:
        tools.append(_beside_instructed(words))
        rng.shuffle(tools)
    if has_value:
        said = rng.choice([f"Put my {words.noun()} on {thing} {spoken_}", f"I bet {spoken_} is the {words.noun()}", f"I take {thing} {spoken_}", f"{thing.capitalize()} {spoken_}", f"My {words.noun()} is {spoken_}", f"{spoken_} please", f"I choose {spoken_}", f"Try {spoken_}"])
    else:
        said = rng.choice([f"My {words.noun()} is {spoken_}", f"I think it is {spoken_}", f"My {words.noun()} is {words.noun()}", f"I say {spoken_}", "Hello", "Let's go", f"I guess {spoken_}", words.phrase(1, 3).capitalize()])
    return First(said[0].upper() + said[1:], tuple(tools), name, {thing: value} if has_value else {}, system)


def _beside_instructed(words: Words) -> Tool:
    rng = words.rng
    if rng.random() < 0.4:
        return make_tool(words, rng.choice(["final_result", "final_answer", "done"]), "The final response which ends this conversation", {"response": {"type": rng.choice(["boolean", "string"])}}, ["response"])
    noun = words.noun()
    return make_tool(words, f"get_{noun}_name", f"Get the {noun}'s name.", {})


def meeting(words: Words) -> First:
    """Arrange something with several people, a date, a time and a topic, all copied."""
    rng = words.rng
    noun = rng.choice(["call", "appointment", "session", "interview", "lunch", words.noun()])
    verb = rng.choice(["plan", "arrange", "set_up", "create", "organize", words.noun()])
    people = [words.person() for _ in range(rng.choice([1, 2, 2, 3]))]
    topic = rng.choice([words.phrase(1, 3), f"{words.made_up()} {words.noun()}", f"Q{rng.randint(1, 4)} {words.noun()}"])
    day, hour = phrase_of_day(words), phrase_of_time(words)
    keys = [rng.choice(["attendees", "participants", "people", "guests"]), rng.choice(["date", "day"]), rng.choice(["time", "start_time"]), rng.choice(["topic", "subject", "title", "about"])]
    schemas: list[Schema] = [
        {"type": "array", "items": {"type": "string"}},
        text(rng.choice(["", f"Date of the {noun} (e.g., '2024-07-29')", "The day"])),
        text(rng.choice(["", f"Time of the {noun} (e.g., '15:00')", "When it starts"])),
        text(rng.choice(["", f"The subject or topic of the {noun}.", "What it is about"])),
    ]
    if rng.random() < 0.5:
        schemas[0]["description"] = f"List of {rng.choice(['people', 'names', 'guests'])}."
    values: list[Value] = [people, day, hour, topic]
    kept = sorted({0, *rng.sample([1, 2, 3], rng.choice([1, 2, 3, 3]))})
    named = people[0] if len(people) == 1 else f"{', '.join(people[:-1])} and {people[-1]}"
    said = f"{verb.replace('_', ' ').capitalize()} {rng.choice(['a', 'the'])} {noun} with {named}"
    links = {1: rng.choice([f" for {day}", f" on {day}"]), 2: f" at {hour}", 3: rng.choice([f" about {topic}", f" about the {topic}", f" on {topic}"])}
    said += "".join(links[index] for index in kept if index)
    name = f"{verb}_{noun}"
    told = rng.choice([f"{verb.replace('_', ' ').capitalize()}s a {noun} with people at a given time and date.", f"{verb.replace('_', ' ').capitalize()} a {noun}", ""])
    params = {keys[index]: schemas[index] for index in kept}
    return First(said + rng.choice([".", "", "."]), (make_tool(words, name, told, params, list(params)),), name, {keys[index]: values[index] for index in kept})


def contact(words: Words) -> First:
    """Save somebody's name and number."""
    rng = words.rng
    name, call = words.person(), rng.choice(["save_contact", "store_person", "add_person", "create_lead"])
    values: dict[str, Value] = {"name": name, "phone": phone(words), "email": words.email()}
    kept = ["name", *rng.sample(["phone", "email"], rng.choice([1, 2]))]
    said = f"{rng.choice(['Save', 'Store', 'Please add', 'Remember'])} {', '.join(str(values[key]) for key in kept)}"
    tool = make_tool(words, call, rng.choice(["Saves a person.", "Store somebody's data", ""]), {key: text() for key in kept}, kept)
    return First(said, (tool,), call, {key: values[key] for key in kept})


FAMILIES: tuple[tuple[Callable[[Words], First], int], ...] = (
    (weather, 34), (arithmetic, 16), (expression, 9), (lookup, 12), (mine, 6), (instructed, 12), (meeting, 7), (contact, 3),
)  # fmt: skip


def first_call(words: Words) -> First:
    """Draw one of a family."""
    families, weights = zip(*FAMILIES, strict=True)
    family: Callable[[Words], First] = words.rng.choices(families, weights)[0]
    return family(words)


def unmet(words: Words) -> First:
    """Ask one family for what only another does; `call` is empty."""
    told = words.rng.sample([weather, arithmetic, expression, lookup, meeting], 2)
    if {arithmetic, expression} == set(told):
        told = [weather, arithmetic]
    offered, asked = (family(words) for family in told)
    return First(asked.said, offered.tools, "", {}, "")
