"""First requests for the weather, with tools as quickstarts describe them, and others beside."""

from __future__ import annotations

from dataclasses import dataclass

from service.conversation import Tool
from tools.nano.first_request import First, shuffled
from tools.nano.first_words import a_place, say
from tools.nano.sdk_tools import Schema, any_tool, make_tool, text
from tools.nano.values import Value
from tools.nano.words import Words

_UNITS = (
    *[("celsius", "fahrenheit")] * 2,
    *[("c", "f"), ("C", "F"), ("metric", "imperial"), ("fahrenheit", "celsius")],
)


@dataclass(frozen=True, slots=True)
class _Unit:
    key: str
    choices: tuple[str, ...]
    is_required: bool


def weather(words: Words) -> First:
    """Ask for the weather or the temperature of a place."""
    rng = words.rng
    name = say(words, "weather names")
    is_warmth = "temperature" in name
    key = rng.choice(["location", "location", "city", "city", "place", "town"])
    unit = _unit(words) if rng.random() < 0.45 else None
    tool = _weather_tool(words, name, key, unit, is_warmth)
    place = a_place(words)
    section = "ask temperature" if is_warmth or rng.random() < 0.15 else "ask weather"
    said = say(words, section, p=place, n=say(words, "now"))
    values: dict[str, Value] = {key: place}
    if unit and rng.random() < 0.25:
        values[unit.key] = chosen = rng.choice(unit.choices)
        said = said.rstrip("?.") + rng.choice([" in {}?", " in {}", ", in {} please"]).format(
            chosen
        )
    elif unit and unit.is_required:
        values[unit.key] = unit.choices[0]
    system = say(words, "systems", noun=words.noun()) if rng.random() < 0.35 else ""
    tools = [tool, *_beside_weather(words)]
    return First(said, shuffled(words, tools), name, values, system)


def _unit(words: Words) -> _Unit:
    key = words.rng.choice("unit unit units format format temperature_unit scale".split())
    return _Unit(key, words.rng.choice(_UNITS), words.rng.random() < 0.5)


def _weather_tool(words: Words, name: str, key: str, unit: _Unit | None, is_warmth: bool) -> Tool:
    rng = words.rng
    what = say(words, "weather")
    while is_warmth and "temperature" not in what:
        what = say(words, "weather")
    told = f"{say(words, 'fetch')} {what}"
    if rng.random() < 0.9:
        told += f" {rng.choice(['in', 'for', 'of', 'at', 'for'])} {say(words, 'where')}"
    told += say(words, "behind weather")
    params = {key: text(_describe_place(words, key))}
    required = [key] if unit or rng.random() > 0.08 else []
    if unit:
        first, second = unit.choices
        described = text(say(words, "units", k=unit.key, a=first, b=second))
        default = {"default": first} if rng.random() < 0.2 else {}
        params[unit.key] = {**described, "enum": list(unit.choices), **default}
        required += [unit.key] * unit.is_required
    return make_tool(words, name, "" if rng.random() < 0.12 else told, params, required)


def _describe_place(words: Words, key: str) -> str:
    state = "".join(words.rng.choices("ABCDEFGHIKLMNOPRSTVWY", k=2))
    return say(words, "places", k=key, p=words.place(), q=words.place(), s=state)


def _beside_weather(words: Words) -> list[Tool]:
    """Offer tools that look alike beside the one that is meant, in half of the cases."""
    if words.rng.random() < 0.55:
        return []
    makers = words.rng.sample(_BESIDE_WEATHER, words.rng.choice([1, 1, 2]))
    return [make(words) for make in makers]


def _clock(words: Words) -> Tool:
    told = f"{say(words, 'fetch')} the current time {words.rng.choice(['in', 'for'])} "
    name = words.rng.choice(["get_time", "get_current_time", "clock"])
    city = text(_describe_place(words, "city"))
    return make_tool(words, name, f"{told}{say(words, 'where')}.", {"city": city}, ["city"])


def _whereabouts(words: Words) -> Tool:
    told = words.rng.choice(
        ["Gets the place of the user.", "Get the user's location", "Where am I"]
    )
    return make_tool(words, words.rng.choice(["get_location", "get_user_location"]), told, {})


def _many_weathers(words: Words) -> Tool:
    many: Schema = {"type": "array", "items": {"type": "string"}, "description": "List of places"}
    of = words.rng.choice(["a list of locations", "several cities", "many places"])
    name = words.rng.choice(["get_multiple_weathers", "get_weathers", "compare_weather"])
    told = f"{say(words, 'fetch')} the current weather in {of}."
    return make_tool(words, name, told, {"locations": many}, ["locations"])


def _other_air(words: Words) -> Tool:
    noun = words.rng.choice(["wind speed", "air quality", "humidity", words.noun()])
    told = f"{say(words, 'fetch')} the current {noun} at {say(words, 'where')}."
    place = text(_describe_place(words, "location"))
    name = f"get_current_{noun.replace(' ', '_')}"
    return make_tool(words, name, told, {"location": place}, ["location"])


_BESIDE_WEATHER = (_clock, _whereabouts, _many_weathers, _other_air, any_tool)
