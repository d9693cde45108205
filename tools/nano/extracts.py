"""Texts to take data from: a record's schema, a text that holds its values, and the record.

A record is asked for as a response format, or as the arguments of a tool that is named like it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from service.conversation import ResponseFormat, Tool
from tools.nano.first_words import in_words, listed, phone, phrase_of_day, phrase_of_time
from tools.nano.phrases import phrases
from tools.nano.sdk_tools import Schema
from tools.nano.values import Value
from tools.nano.words import Words


@dataclass(frozen=True, slots=True)
class Extract:
    """A text to take a record from."""

    said: str
    record: dict[str, Value]
    schema: Schema
    name: str  # of the record's class
    description: str = ""
    system: str = ""

    def format(self) -> ResponseFormat:
        """Return the record's schema as a response format."""
        return ResponseFormat(self.schema, self.name, self.description)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A sentence, and the values that it holds."""

    text: str
    values: dict[str, Value]


def _say(words: Words, section: str, **values: object) -> str:
    drawn = words.rng.choice(phrases(section, "extracts.txt").train).replace("\\n", "\n")
    return drawn.format(**values) if values else drawn


def _sentence(words: Words, section: str, values: Mapping[str, Value], **spoken: object) -> Drawn:
    """Draw a sentence; `spoken` is how values are written that do not stand as they are."""
    form = _say(words, section)
    used = {key: values[key] for key in re.findall(r"{(\w+)}", form) if key in values}
    return Drawn(form.format(**{**values, **spoken}), used)


def _person(words: Words) -> Drawn:
    rng = words.rng
    age = rng.randint(1, 99)
    job = _say(words, "jobs") if rng.random() < 0.5 else words.phrase(1, 2)
    values: dict[str, Value] = {"name": words.person(), "age": age, "job": job}
    values |= {"place": words.place(), "company": words.made_up()}
    return _sentence(words, "Person", values, age=in_words(age) if rng.random() < 0.06 else age)


def _contact(words: Words) -> Drawn:
    values = {"name": words.person(), "email": words.email(), "phone": phone(words)}
    return _sentence(words, "Contact", {**values, "company": words.made_up()})


def _order(words: Words) -> Drawn:
    rng = words.rng
    cents = float(f"{rng.randint(0, 99)}.{rng.randint(1, 9)}{rng.randint(1, 9)}")
    named = " ".join(words.made_up() for _ in range(rng.choice([1, 2, 2])))
    product = named if rng.random() < 0.6 else words.phrase(1, 2)
    price: Value = cents if rng.random() < 0.7 else rng.randint(1, 500)
    quantity = rng.randint(1, 60)
    return _sentence(words, "Order", {"product": product, "price": price, "quantity": quantity})


def _event(words: Words) -> Drawn:
    people = [words.person() for _ in range(words.rng.choice([1, 2, 2, 2, 3]))]
    values: dict[str, Value] = {"people": people, "event": words.phrase(1, 3)}
    values |= {"day": phrase_of_day(words), "hour": phrase_of_time(words), "place": words.place()}
    return _sentence(words, "Event", values, people=listed(people, " and "))


def _wish(words: Words) -> Drawn:
    """Say what somebody wants, or does not: a sentence that tells a truth value."""
    thing, wants = words.noun(), words.rng.random() < 0.65
    values = {"name": words.person(), "email": words.email(), "plan": words.made_up()}
    asks = _say(words, "wishes" if wants else "no wishes", thing=thing)
    drawn = _sentence(words, "Wish", values, asks=asks)
    key = words.rng.choice([f"{thing}_requested", f"wants_{thing}", f"{thing}_wanted"])
    return replace(drawn, values={**drawn.values, key: wants})


_SIZES = (["width", "height", "depth"], ["length", "width", "height"], ["width", "height"])


def _size(words: Words) -> Drawn:
    rng = words.rng
    keys = rng.choice([*_SIZES, ["rows", "columns"]])
    sizes = [rng.randint(1, rng.choice([20, 99, 400])) for _ in keys]
    unit = rng.choice("cm mm inches m in feet".split())
    dims = rng.choice(["x", "x", " x ", " by "]).join(map(str, sizes))
    text = _say(words, "Size", thing=words.noun(), dims=dims, unit=unit)
    return Drawn(text, {**dict(zip(keys, sizes, strict=True)), "units": unit})


def _told(words: Words) -> Drawn:
    """Tell values by the names of their fields, which are any words."""
    rng = words.rng
    draws: list[Callable[[], Value]] = [words.made_up, words.person, words.place, words.number]
    draws += [words.noun, words.code, words.email, words.date, words.decimal]
    keys = dict.fromkeys(words.noun() for _ in range(rng.choice([1, 2, 2, 3, 4])))
    values = {key: rng.choice(draws)() for key in keys}
    form, joint = _say(words, "told"), rng.choice([", ", " and ", "\n", "; "])
    return Drawn(joint.join(form.format(k=key, v=value) for key, value in values.items()), values)


Draw = Callable[[Words], Drawn]
# What draws a record, the classes that it may be called, its share.
_KINDS: tuple[tuple[Draw, str, int], ...] = (
    (
        _person,
        "Person User UserProfile UserDetail Employee Character Player Profile Individual",
        30,
    ),
    (_contact, "Contact ContactInfo Lead Customer ContactDetails PhoneBookEntry", 14),
    (_order, "Order Product Purchase OrderItem Item LineItem Sale", 13),
    (_event, "Event CalendarEvent Meeting Appointment EventInfo CalendarEntry", 15),
    (_wish, "Request Inquiry EmailInfo Interest LeadInfo", 8),
    (_size, "Box Size Dimensions Package Table", 7),
    (_told, "Record Data Info Result Answer Facts Details", 13),
)
# How fields are called.
_NAMES: Mapping[str, str] = {
    "name": "name name name name full_name person customer_name",
    "age": "age age age years age_in_years",
    "job": "occupation job job_title profession role occupation",
    "place": "city location place hometown city",
    "company": "company employer organization",
    "email": "email email email_address mail",
    "phone": "phone phone phone_number telephone",
    "product": "product_name product item name title",
    "price": "price unit_price cost price",
    "quantity": "quantity amount count quantity",
    "event": "name event event_name title what",
    "day": "date day when date",
    "hour": "time hour start_time",
    "people": "participants attendees people names guests",
    "plan": "plan plan_name plan_interest subscription product",
    "units": "units unit",
}
_MANY_SHARE = 0.22  # of those that a list can be of
_LISTED = (_person, _contact, _order)


def extract(words: Words) -> Extract:
    """Draw a text with one record, or with a list of some."""
    rng = words.rng
    draw, classes, _ = rng.choices(_KINDS, [share for *_, share in _KINDS])[0]
    name = rng.choice(classes.split())
    if rng.random() < 0.25:
        made_up = words.noun().capitalize() + rng.choice(["", name, "Info", "Data"])
        name = rng.choice([made_up, name.lower(), f"Extract{name}Data"])
    is_many = draw in _LISTED and rng.random() < _MANY_SHARE
    text, record, schema = (_many if is_many else _one)(words, name, draw)
    shown = name.lower()
    fields = listed([key.replace("_", " ") for key in schema["properties"]], " and ")
    opening = _say(words, "openings", c=shown, f=fields)
    if opening and rng.random() < 0.25:
        text = rng.choice(['"{}"', "'{}'", "`{}`"]).format(text)
    told = rng.choice(["", "", f"{words.phrase(2, 5).capitalize()}.", f"A {shown}."])
    if told and rng.random() < 0.5:
        schema = {"description": told, **schema}
    said = opening + text + rng.choice(["", "", "", "\n"])
    return Extract(said, record, schema, name, told, _say(words, "systems", c=shown, f=fields))


Made = tuple[str, dict[str, Value], Schema]  # a text, its record, the record's schema


def _one(words: Words, name: str, draw: Draw) -> Made:
    drawn = draw(words)
    names = _named(words, list(drawn.values))
    record = {names[key]: drawn.values[key] for key in names}
    return drawn.text, record, _schema(words, name, record)


def _many(words: Words, name: str, draw: Draw) -> Made:
    rng = words.rng
    first = draw(words)
    alike = (
        drawn
        for drawn in iter(lambda: draw(words), None)
        if drawn.values.keys() == first.values.keys()
    )
    rows = [first, *(next(alike) for _ in range(rng.choice([0, 1, 1, 2, 2, 3])))]
    names = _named(words, list(first.values))
    records = [{names[key]: row.values[key] for key in names} for row in rows]
    key = rng.choice([f"{name.lower()}s", "items", "people", "list", "entries", words.noun()])
    text = _as_list(words, name, [row.text for row in rows])
    one = _schema(words, name, *records)
    if rng.random() < 0.4:
        return text, {key: records}, _object(words, name, {key: {"type": "array", "items": one}})
    items = {"items": {"$ref": f"#/$defs/{name}"}, "title": key.capitalize(), "type": "array"}
    schema = _object(words, f"{name}List", {key: items}, {"$defs": {name: one}})
    return text, {key: records}, schema


def _as_list(words: Words, name: str, lines: list[str]) -> str:
    indent = words.rng.choice(["", "", "    ", "        "])
    marks = [f"\n{indent}- ", f"\n{indent}- ", f"\n{indent}* ", " ", f"\n{indent}", "; "]
    mark = words.rng.choice(marks)
    head = _say(words, "heads", c=name.lower(), few=words.phrase(2, 5).capitalize())
    return (head.replace("\n", f"\n{indent}") + "".join(mark + line for line in lines)).strip(" ;")


def _named(words: Words, keys: list[str]) -> dict[str, str]:
    """Choose which values are asked for, and under which names, in which order."""
    rng = words.rng
    share = 1.0 if "units" in keys else 0.9  # without one of its sizes a row of them tells little
    kept = [key for key in keys if rng.random() < share] or keys[:1]
    if rng.random() < 0.3:
        rng.shuffle(kept)
    names = {key: rng.choice(_NAMES.get(key, key).split()) for key in kept}
    return names if len(set(names.values())) == len(names) else {key: key for key in kept}


def _object(words: Words, name: str, properties: Schema, more: Mapping[str, Any] = {}) -> Schema:
    """Return an object's schema in the order of one of the SDKs."""
    rng = words.rng
    required = {"required": list(properties) if rng.random() < 0.8 else sorted(properties)}
    closed = {"additionalProperties": False} if rng.random() < 0.6 else {}
    if rng.random() < 0.55:  # pydantic's
        head = {**more, "properties": properties}
        return {**head, **required, "title": name, "type": "object", **closed}
    return {"type": "object", **more, "properties": properties, **required, **closed}


def _schema(words: Words, name: str, *records: Mapping[str, Value]) -> Schema:
    """Return a record's schema, of the types that all of some have."""
    rng = words.rng
    has_titles, is_told = rng.random() < 0.5, rng.random() < 0.25
    properties: Schema = {}
    for key in records[0]:
        field: Schema = {"description": _describe(words, name, key)} if is_told else {}
        types = {_TYPES[type(record[key])] for record in records}
        kind = types.pop() if len(types) == 1 else "number"
        if kind == "array":
            field["items"] = {"type": "string"}
        if has_titles:
            field["title"] = key.replace("_", " ").title()
        field["type"] = kind
        is_turned = not has_titles and rng.random() < 0.5
        properties[key] = dict(reversed(field.items())) if is_turned else field
    return _object(words, name, properties)


_TYPES = {bool: "boolean", list: "array", float: "number", int: "integer", str: "string"}


def _describe(words: Words, name: str, key: str) -> str:
    plain, shown = key.replace("_", " "), name.lower()
    forms = [f"The {plain} of the {shown}", f"The {plain}", f"The {shown}'s {plain}"]
    return words.rng.choice([*forms, f"{plain.capitalize()} as in the text"])


def described_tool(words: Words, found: Extract) -> Tool:
    """Return the record's tool, described as SDKs that take data by calls describe theirs."""
    name = found.name
    if words.rng.random() < 0.2:
        name = words.rng.choice(["final_result", "extract", "save", "output", "respond"])
    return Tool(name, _say(words, "tools", c=found.name.lower()), found.schema)
