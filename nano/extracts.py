"""Texts to take data from: a record's schema, a text that holds its values, and the record.

A record is asked for as a response format, or as the arguments of a tool that is named like it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nano.first_calls import Schema
from nano.first_words import in_words, phone, phrase_of_day, phrase_of_time
from nano.values import Value
from nano.words import Words
from service.harmony.types import ResponseFormat, Tool


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

    def tool(self, told: str) -> Tool:
        """Return the record's schema as a tool that is named like it."""
        return Tool(self.name, told, self.schema)


Drawn = tuple[str, dict[str, Value]]  # a sentence, and the values that it holds by field


def _person(words: Words) -> Drawn:
    rng = words.rng
    name, age, place, job = words.person(), rng.randint(1, 99), words.place(), _job(words)
    company = words.made_up()
    forms: list[tuple[str, str]] = [
        ("{name} is {age} years old.", "name age"), ("{name} is {age} years old", "name age"),
        ("{name} is {age}.", "name age"), ("{name}, {age}", "name age"), ("{name} ({age})", "name age"),
        ("My name is {name} and I am {age} years old.", "name age"), ("I am {name}, {age} years old.", "name age"),
        ("{name} is a {age}-year-old {job}.", "name age job"), ("{name}, a {age} year old {job}, lives in {place}.", "name age job place"),
        ("{name} is {age} years old and lives in {place}.", "name age place"), ("{name} from {place} is {age}.", "name place age"),
        ("{name} works as a {job} at {company}.", "name job company"), ("{name} is a {job} in {place}.", "name job place"),
        ("{name} turned {age} and works for {company} as a {job}.", "name age company job"),
        ("{name} lives in {place}.", "name place"), ("Meet {name}, {age}, {job} from {place}.", "name age job place"),
        ("{name} has a {age} year old dog.", "name age"),
    ]  # fmt: skip
    form, used = rng.choice(forms)
    values: dict[str, Value] = {"name": name, "age": age, "job": job, "place": place, "company": company}
    spoken_age = in_words(age) if rng.random() < 0.08 and "-year" not in form else str(age)
    text = form.format(**{**values, "age": spoken_age})
    return text, {key: values[key] for key in used.split()}


def _job(words: Words) -> str:
    jobs = "software engineer|teacher|data scientist|nurse|student|product manager|doctor|pilot|designer|lawyer".split("|")
    return words.rng.choice([words.rng.choice(jobs), words.phrase(1, 2)])


def _contact(words: Words) -> Drawn:
    name, email, number, company = words.person(), words.email(), phone(words), words.made_up()
    values: dict[str, Value] = {"name": name, "email": email, "phone": number, "company": company}
    forms = [
        ("{name}, {email}, {phone}", "name email phone"), ("{name}, {phone}, {email}", "name phone email"),
        ("{name} ({email})", "name email"), ("{name} <{email}>", "name email"), ("{name} at {company}, {email}", "name company email"),
        ("Call {name} at {phone} or write to {email}.", "name phone email"), ("{name}: {phone}", "name phone"),
        ("You can reach {name} at {email}.", "name email"), ("My name is {name}, my number is {phone}.", "name phone"),
        ("{name} from {company} can be reached at {phone}.", "name company phone"),
    ]  # fmt: skip
    form, used = words.rng.choice(forms)
    return form.format(**values), {key: values[key] for key in used.split()}


def _order(words: Words) -> Drawn:
    rng = words.rng
    cents = f"{rng.randint(0, 99)}.{rng.randint(1, 9)}{rng.randint(1, 9)}"
    price: Value = float(cents) if rng.random() < 0.7 else rng.randint(1, 500)
    product = " ".join(words.made_up() for _ in range(rng.choice([1, 2, 2]))) if rng.random() < 0.6 else words.phrase(1, 2)
    values: dict[str, Value] = {"product": product, "price": price, "quantity": rng.randint(1, 60), "unit": words.noun()}
    forms = [
        ("I'd like to order {quantity} packs of {product} for {price} dollars each.", "product price quantity"),
        ("Please send {quantity} {product} at {price} euros.", "product price quantity"), ("{quantity} x {product}, {price} each", "product price quantity"),
        ("{product} costs {price} dollars.", "product price"), ("The {product} is ${price}.", "product price"),
        ("We need {quantity} boxes of {product}.", "product quantity"), ("{product}: {price}", "product price"),
        ("I bought {quantity} {product} for {price}.", "product price quantity"), ("{quantity} {unit}s of {product}", "product quantity"),
    ]  # fmt: skip
    form, used = rng.choice(forms)
    return form.format(**values), {key: values[key] for key in used.split()}


def _event(words: Words) -> Drawn:
    rng = words.rng
    people = [words.person() for _ in range(rng.choice([1, 2, 2, 2, 3]))]
    named = people[0] if len(people) == 1 else f"{', '.join(people[:-1])} and {people[-1]}"
    values: dict[str, Value] = {"event": words.phrase(1, 3), "day": phrase_of_day(words), "hour": phrase_of_time(words), "place": words.place()}
    are = "is" if len(people) == 1 else "are"
    forms = [
        (f"{named} {are} going to a {{event}} on {{day}}.", "event day people"), (f"{named} meet for a {{event}} on {{day}}.", "event day people"),
        (f"On {{day}}, {named} will go to the {{event}} in {{place}}.", "event day people place"), (f"{named} {are} at the {{event}} at {{hour}} on {{day}}.", "event day hour people"),
        ("The {event} is on {day} at {hour}.", "event day hour"), ("{event} in {place}, {day}", "event place day"), (f"{{event}} with {named} on {{day}}", "event people day"),
        (f"{named} {are} planning a {{event}} for {{day}} at {{hour}}.", "event day hour people"),
    ]  # fmt: skip
    form, used = rng.choice(forms)
    values["people"] = people
    return form.format(**values), {key: values[key] for key in used.split()}


def _wish(words: Words) -> Drawn:
    """Say what somebody wants, or does not: a sentence that tells a truth value."""
    rng = words.rng
    name, email, plan, thing = words.person(), words.email(), words.made_up(), words.noun()
    wants = rng.random() < 0.65
    asks = rng.choice([f"asks for a {thing}", f"would like a {thing}", f"wants a {thing}", f"needs a {thing}"])
    if not wants:
        asks = rng.choice([f"does not want a {thing}", f"needs no {thing}", f"asks for no {thing}"])
    forms = [
        f"{name} ({email}) would like our {plan} plan and {asks} {rng.choice(['on', 'by'])} {phrase_of_day(words)}.",
        f"{name} ({email}) chose the {plan} plan and {asks}.", f"{name} <{email}> asks about the {plan} plan and {asks} at {phrase_of_time(words)}.",
        f"{name} ({email}) has the {plan} plan. {rng.choice(['It', 'The team'])} {asks}.",
    ]  # fmt: skip
    key = rng.choice([f"{thing}_requested", f"wants_{thing}", f"{thing}_wanted", f"needs_{thing}"])
    return rng.choice(forms), {"name": name, "email": email, "plan": plan, key: wants}


def _size(words: Words) -> Drawn:
    rng = words.rng
    keys = rng.choice([["width", "height", "depth"], ["length", "width", "height"], ["width", "height"], ["rows", "columns"]])
    sizes = [rng.randint(1, rng.choice([20, 99, 400])) for _ in keys]
    unit = rng.choice(["cm", "mm", "inches", "m", "in", "feet"])
    thing = words.noun()
    dims = rng.choice(["x", "x", " x ", " by "]).join(map(str, sizes))
    text = rng.choice([f"The {thing} is {dims} {unit}", f"A {thing} of {dims} {unit}.", f"{thing}: {dims} {unit}", f"My {thing} measures {dims} {unit}."])
    return text, {**dict(zip(keys, sizes, strict=True)), "units": unit}


def _told(words: Words) -> Drawn:
    """Tell values by the names of their fields, which are any words."""
    rng = words.rng
    draws: list[Callable[[], Value]] = [words.made_up, words.person, words.place, words.number, words.noun, words.code, words.email, words.date, words.decimal]
    keys = list(dict.fromkeys(words.noun() for _ in range(rng.choice([1, 2, 2, 3, 4]))))
    values = {key: rng.choice(draws)() for key in keys}
    form = rng.choice(["{k}: {v}", "the {k} is {v}", "{k} {v}", "with {k} {v}", "Its {k} is {v}", "The {k} is {v}", "{v} as {k}"])
    joint = rng.choice([", ", " and ", "\n", "; "])
    return joint.join(form.format(k=key, v=value) for key, value in values.items()), values


_KINDS: tuple[tuple[str, Callable[[Words], Drawn], int], ...] = (
    ("Person|User|UserProfile|UserDetail|Human|Employee|Character|Player|Profile|PersonInfo|Individual", _person, 30),
    ("Contact|ContactInfo|Lead|Customer|ContactDetails|PhoneBookEntry", _contact, 14),
    ("Order|Product|Purchase|OrderItem|Item|LineItem|Sale", _order, 13),
    ("Event|CalendarEvent|Meeting|Appointment|EventInfo|CalendarEntry", _event, 15),
    ("Request|Inquiry|EmailInfo|Interest|LeadInfo", _wish, 8),
    ("Box|Size|Dimensions|Package|Table", _size, 7),
    ("Record|Data|Info|Result|Answer|Facts|Details", _told, 13),
)  # fmt: skip
# How fields are called; those of a sentence are not all asked for.
_NAMES: Mapping[str, str] = {
    "name": "name|name|name|name|full_name|person|customer_name",
    "age": "age|age|age|years|age_in_years",
    "job": "occupation|job|job_title|profession|role|occupation",
    "place": "city|location|place|hometown|city",
    "company": "company|employer|organization",
    "email": "email|email|email_address|mail",
    "phone": "phone|phone|phone_number|telephone",
    "product": "product_name|product|item|name|title",
    "price": "price|unit_price|cost|price",
    "quantity": "quantity|amount|count|quantity",
    "event": "name|event|event_name|title|what",
    "day": "date|day|when|date",
    "hour": "time|hour|start_time",
    "people": "participants|attendees|people|names|guests",
    "plan": "plan|plan_name|plan_interest|subscription|product",
    "units": "units|unit",
}
_OPENINGS = (
    "|||||Extract |Extract: |Extract the data: |Extract the {c} from: |Extract the {c}: |Parse this: |"
    "Extract {c} info from: |Extract the information from this text: |Get the {c} out of this: |Text: |"
    "Please extract the fields from this message: |Extract the key data from this mail: |"
    "Here is some text: |Read this and fill in the fields: |Extract the {f} from this message:\n|"
    "\nExtract the {f} from this note:\n|Turn this into JSON: |Find the {f} in: |"
).split("|")
_SYSTEMS = (
    "||||||Extract the {c} information.|You extract data.|Extract data from text|Extract the {c}.|You are a helpful assistant.|"
    "Extract me the {f} of a {c}, if you can't, say so.|You are an expert at extracting data. Give null for what you do not know.|"
    "Extract events from text|Respond in JSON.|Extract the {f}."
).split("|")  # fmt: skip


def extract(words: Words) -> Extract:
    """Draw a text with one record, or with a list of some."""
    rng = words.rng
    classes, draw, _ = rng.choices(_KINDS, [share for *_, share in _KINDS])[0]
    name = rng.choice(classes.split("|"))
    if rng.random() < 0.25:
        name = rng.choice([words.noun().capitalize() + rng.choice(["", name, "Info", "Data"]), name.lower(), f"Extract{name}Data"])
    is_many = draw in (_person, _contact, _order) and rng.random() < 0.22
    made = _many(words, name, draw) if is_many else _one(words, name, draw)
    text, record, schema = made
    readable = name.replace("_", " ").lower()
    fields = _listed([key.replace("_", " ") for key in schema["properties"]])
    opening = rng.choice(_OPENINGS).format(c=readable, f=fields)
    if opening and rng.random() < 0.25:
        text = rng.choice([f'"{text}"', f"'{text}'", f"`{text}`"])
    system = rng.choice(_SYSTEMS).format(c=readable, f=fields)
    told = rng.choice(["", "", f"{words.phrase(2, 5).capitalize()}.", f"A {readable}.", f"Information about a {readable}."])
    if told and rng.random() < 0.5:
        schema = {"description": told, **schema}
    return Extract(opening + text + rng.choice(["", "", "", "\n"]), record, schema, name, told, system)


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _one(words: Words, name: str, draw: Callable[[Words], Drawn]) -> tuple[str, dict[str, Value], Schema]:
    text, values = draw(words)
    names = _named(words, list(values))
    record = {names[key]: values[key] for key in names}
    return text, record, _schema(words, name, record)


def _many(words: Words, name: str, draw: Callable[[Words], Drawn]) -> tuple[str, dict[str, Value], Schema]:
    rng = words.rng
    rows: list[Drawn] = [draw(words)]
    for _ in range(200):
        row = draw(words)
        if row[1].keys() == rows[0][1].keys():
            rows.append(row)
        if len(rows) == 4:
            break
    rows = rows[: rng.choice([1, 2, 2, 3, 3, 4])]
    names = _named(words, list(rows[0][1]))
    records = [{names[key]: values[key] for key in names} for _, values in rows]
    key = rng.choice([f"{name.lower()}s", "items", "people", "list", "entries", words.noun()])
    indent = rng.choice(["", "", "    ", "        "])
    mark = rng.choice([f"\n{indent}- ", f"\n{indent}- ", f"\n{indent}* ", " ", f"\n{indent}", "; "])
    head = rng.choice(["", f"{indent}Here are some {name.lower()}s:", f"\n{indent}These are known:", f"\n{indent}{words.phrase(2, 5).capitalize()}:"])
    text = (head + "".join(mark + one for one, _ in rows)).strip(" ;")
    one = _schema(words, name, records[0])
    if rng.random() < 0.6:
        items: Schema = {"$ref": f"#/$defs/{name}"}
        schema = _object(words, f"{name}List", {key: {"items": items, "title": key.capitalize(), "type": "array"}}, {"$defs": {name: one}})
    else:
        schema = _object(words, f"{name}List", {key: {"type": "array", "items": one}})
    return text, {key: records}, schema


def _named(words: Words, keys: list[str]) -> dict[str, str]:
    """Choose which values are asked for, and under which names, in which order."""
    rng = words.rng
    share = 1.0 if "units" in keys else 0.9  # without one of its sizes a row of them tells little
    kept = [key for key in keys if rng.random() < share] or keys[:1]
    if rng.random() < 0.3:
        rng.shuffle(kept)
    names = {key: rng.choice(_NAMES.get(key, key).split("|")) for key in kept}
    return names if len(set(names.values())) == len(names) else {key: key for key in kept}


def _object(words: Words, name: str, properties: Schema, more: Mapping[str, Any] | None = None) -> Schema:
    """Return an object's schema in the order of one of the SDKs."""
    rng = words.rng
    required = {"required": list(properties) if rng.random() < 0.8 else sorted(properties)}
    closed = {"additionalProperties": False} if rng.random() < 0.6 else {}
    head = dict(more or {})
    if rng.random() < 0.55:  # pydantic's
        return {**head, "properties": properties, **required, "title": name, "type": "object", **closed}
    return {"type": "object", **head, "properties": properties, **required, **closed}


def _schema(words: Words, name: str, record: Mapping[str, Value]) -> Schema:
    rng = words.rng
    has_titles, is_told = rng.random() < 0.5, rng.random() < 0.25
    properties: Schema = {}
    for key, value in record.items():
        field: Schema = {}
        if is_told:
            plain = key.replace("_", " ")
            field["description"] = rng.choice([f"The {plain} of the {name.lower()}", f"The {plain}", f"{plain.capitalize()} as in the text", f"The {name.lower()}'s {plain}"])
        if isinstance(value, list):
            field["items"] = {"type": "string"}
        if has_titles:
            field["title"] = key.replace("_", " ").title()
        field["type"] = _type_of(value)
        if not has_titles and rng.random() < 0.5:
            field = dict(reversed(field.items()))
        properties[key] = field
    return _object(words, name, properties)


def _type_of(value: Value) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, list):
        return "array"
    if isinstance(value, float):
        return "number"
    return "integer" if isinstance(value, int) else "string"


_TOLD = (
    "|||Save the data.|Extracted data with all its fields and the right types|The final response which ends this conversation|"
    "Information about a {c}|A {c}|Record a {c}.|Return the {c} that was found in the text|Call this with the {c}.|Extract a {c} from text."
).split("|")  # fmt: skip


def described_tool(words: Words, found: Extract) -> Tool:
    """Return the record's tool, described as SDKs that take data by calls describe theirs."""
    told = words.rng.choice(_TOLD).format(c=found.name.lower())
    called = found
    if words.rng.random() < 0.2:
        called = Extract(found.said, found.record, found.schema, words.rng.choice(["final_result", "extract", "save", "output", "respond"]))
    return called.tool(told)
