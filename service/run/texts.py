"""What the OpenAPI document says of fields, and its examples: service/api/texts.yaml, and a
texts.yaml of each part that has routes.

tools/docs/fields.py writes tables of docs/api.md from the same files.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

import service.api
from engines.parts import folders
from profiles.hardware.gpus import LOADER

CORE: Final = Path(service.api.__file__).with_name("texts.yaml")
WITHOUT_EFFECT: Final = "(without effect)"
ANY: Final = "any"  # of a schema that has no line of its own
_CHAT: Final = "ChatRequest"  # whose words other families repeat
_AS_FOR_CHAT: Final = re.compile(r"(?:extensions?, )?as (?:for chat|on the chat route)[;,.]? ?")
_SEE: Final = re.compile(r"(?:[.:;,]? see |: )\[[^]]+\]\(#[^)]+\)", re.IGNORECASE)
_LINK: Final = re.compile(r"\[([^]]+)\]\([^)]+\)")

Object = dict[str, Any]
Texts = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TextFile:
    """One texts.yaml."""

    tables: Mapping[str, Texts]  # by title: schemas, and what is in brackets after them
    bodies: Mapping[str, Mapping[str, Object]]  # by route: examples by name

    def of_schemas(self) -> dict[str, Texts]:
        """The line of each field, by schema."""
        found: dict[str, dict[str, str]] = {}
        for title, lines in self.tables.items():
            schemas, _, kind = title.partition(" (")
            effect = "accepted without effect: " if f"({kind}" == WITHOUT_EFFECT else ""
            fields = {
                field: effect + said for names, said in lines.items() for field in each(names)
            }
            for schema in each(schemas):
                found.setdefault(schema, {}).update(fields)
        return dict(found)


def each(names: str) -> list[str]:
    return names.split(", ")


def files() -> list[Path]:
    """All of them, the core's first."""
    of_parts = (folder / CORE.name for folder in folders().values())
    return [CORE, *(path for path in of_parts if path.exists())]


@cache
def read(path: Path) -> TextFile:
    content = yaml.load(path.read_text(encoding="utf-8"), LOADER)
    return TextFile(content["fields"], content.get("bodies", {}))


class Descriptions:
    """The words for fields of an application."""

    def __init__(self) -> None:
        given = [read(path).of_schemas() for path in files()]
        self._chat = given[0][_CHAT]
        self._shared: ChainMap[str, str] = ChainMap(
            *(dict(own.get(ANY, {})) for own in given), dict(self._chat)
        )
        self._of_schema = {
            schema: ChainMap(dict(lines), dict(own.get(ANY, {})), *self._shared.maps)
            for own in given
            for schema, lines in own.items()
            if schema != ANY
        }

    def of(self, schema: str, field: str) -> str:
        """A sentence, or nothing where no file has one."""
        said = self._of_schema.get(schema, self._shared).get(field, "")
        if found := _AS_FOR_CHAT.match(said):
            said = f"{self._shared.get(field, said)}. {said[found.end() :]}"
        return _sentence(said)


def _sentence(said: str) -> str:
    """Words of a table as a sentence without links."""
    said = _LINK.sub(r"\1", _SEE.sub("", said)).strip()
    said = said if not said or said[-1] in ".:" else f"{said}."
    return said if said[1:2].isupper() else said[:1].upper() + said[1:]  # vLLM's


def describe(document: Object, model: str) -> None:
    """Put descriptions and examples into a document; `model` is what examples ask for."""
    words = Descriptions()
    for name, schema in document["components"]["schemas"].items():
        _describe_fields(schema, name, words)
    bodies = ChainMap(*({**read(path).bodies} for path in files()))
    for route, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            parameter.setdefault("description", words.of(ANY, parameter["name"]))
        for content in operation.get("requestBody", {}).get("content", {}).values():
            _describe_fields(content["schema"], route, words)
            if route in bodies:
                fields = _fields_of(content["schema"], document)
                given = {"model": model} if "model" in fields else {}
                content["examples"] = {
                    name: {"value": given | body} for name, body in bodies[route].items()
                }


def _fields_of(schema: Object, document: Object) -> Object:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: Object = document["components"]["schemas"].get(name, schema).get("properties", {})
    return found


def _describe_fields(schema: Object, name: str, words: Descriptions) -> None:
    for field, about in schema.get("properties", {}).items():
        if "description" not in about and (said := words.of(name, field)):
            about["description"] = said
        elif "description" not in about and "const" in about:
            about["description"] = f"Always `{about['const']}`."


def operations(document: Object) -> Iterator[tuple[str, Object]]:
    """Routes as "GET /path", with what the document has of each."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation
