"""The OpenAPI document: what FastAPI makes of the routes, with servers, keys and groups."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from auth.base import Scope
from service.api.about import health
from service.http import compressed
from service.http.paths import PathRow, Paths, Routes
from service.run.texts import describe, operations

Schema = dict[str, Any]
Schemas = dict[str, Schema]

ROW: Final = PathRow("/openapi.json", Scope.MODELS)
_SCHEMES: Final = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, or a token of the OpenID provider.",
    },
    "api_key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_DESCRIPTION: Final = """\
OpenAI's and Anthropic's APIs for gpt-oss. A field that is not here is refused with a 400 that names
it, and `null` counts as absent. `/docs` has each route with an example that runs."""
_LISTS: Final = {"string": "Strings", "integer": "Integers", "array": "Lists"}
_REF: Final = "#/components/schemas/{model}"
_FAILED: Final = {"4XX": "Client Error", "5XX": "Server Error"}  # what a route may answer instead
_ANY_SCHEME: Final[list[dict[str, list[str]]]] = [{name: []} for name in _SCHEMES]


class Application(FastAPI):
    """The ASGI application with our OpenAPI document."""

    def __init__(self, families: Sequence[Routes], *, needs_key: bool, model: str) -> None:
        """`needs_key`: callers must say who they are, on all routes but the open ones; `model`:
        what examples ask for."""
        rows = [row for family in families for row in family.rows]
        self.paths: Final = Paths([*rows, ROW])
        groups = [group for family in families for group in family.groups]
        groups.sort(key=lambda group: group.rank)
        super().__init__(
            title="Harmonium",
            summary="OpenAI-compatible inference for gpt-oss.",
            description=_DESCRIPTION,
            version=health.RELEASE,
            openapi_url=None,  # its route is ours, below
            docs_url=None,  # theirs asks another host; parts/pages has one
            redoc_url=None,
            # As they are: to include the routers would make each route and its fields once more.
            routes=[route for family in families for route in family.router.routes],
            servers=[{"url": "/"}],  # relative to the document's own address
            openapi_tags=[{"name": group.name, "description": group.text} for group in groups],
            license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        )
        self._needs_key = needs_key
        self._model = model
        self._written: compressed.CompressedText | None = None
        self._writing = asyncio.Lock()
        self.add_route(ROW.path, self._get_openapi, include_in_schema=False)

    async def _get_openapi(self, request: Request) -> Response:
        async with self._writing:
            if self._written is None:  # takes a second
                self._written = await asyncio.to_thread(self._write)
        return self._written.answer(request)

    def _write(self) -> compressed.CompressedText:
        document = json.dumps(self.openapi(), separators=(",", ":")).encode()
        return compressed.CompressedText.of(document, "application/json")

    def openapi(self) -> dict[str, Any]:
        """The document; made once."""
        document = super().openapi()
        components = document["components"]
        if "securitySchemes" not in components:
            components["securitySchemes"] = _SCHEMES
            self._add_errors(document)
            components["schemas"] = _for_generators(components["schemas"])
            _remove_unused(document)
            for route, operation in operations(document):
                operation["security"] = self._security(route.partition(" ")[2])
            describe(document, self._model)
        return document

    def _add_errors(self, document: dict[str, Any]) -> None:
        """Give each operation its errors, in the shape of its path's API; what a route says itself
        stays."""
        told: dict[type[BaseModel], Schema] = {}
        for route, operation in operations(document):
            error = self.paths.row(route.partition(" ")[2]).dialect.error
            if error not in told:
                told[error] = error.model_json_schema(ref_template=_REF, mode="serialization")
                schemas = {**told[error].pop("$defs", {}), error.__name__: told[error]}
                document["components"]["schemas"] |= schemas
            schema = {"$ref": _REF.format(model=error.__name__)}
            for statuses, what in _FAILED.items():
                content = {"application/json": {"schema": schema}}
                own = {"description": what, "content": content}
                operation["responses"].setdefault(statuses, own)

    def _security(self, path: str) -> list[dict[str, list[str]]]:
        if self.paths.row(path).scope is None:
            return []
        return _ANY_SCHEME if self._needs_key else [*_ANY_SCHEME, {}]  # {}: none is needed


def _remove_unused(document: dict[str, Any]) -> None:
    """Remove FastAPI's 422, which no route answers, and the schemas that nothing refers to."""
    for _, operation in operations(document):
        operation["responses"].pop("422", None)
    schemas: Schemas = document["components"]["schemas"]
    used: set[str] = set()
    new = _named_in(document["paths"])
    while new:
        used |= new
        new = {name for each in new for name in _named_in(schemas[each])} - used
    document["components"]["schemas"] = {name: schemas[name] for name in schemas if name in used}


def _named_in(value: Any) -> set[str]:
    """The schemas that a part of the document refers to."""
    if not isinstance(value, dict | list):
        return set()
    found = set().union(*map(_named_in, value.values() if isinstance(value, dict) else value))
    if isinstance(value, dict) and isinstance(ref := value.get("$ref"), str):
        found.add(ref.rpartition("/")[2])
    return found


def _for_generators(schemas: Schemas) -> Schemas:
    """The schemas as code generators take them; they mean the same."""
    bare = {name: _without_titles(schema) for name, schema in schemas.items()}
    lists: Schemas = {}
    named = {name: _with_named_lists(schema, name, lists) for name, schema in bare.items()}
    return named | lists


def _with_named_lists(value: Any, name: str, lists: Schemas) -> Any:
    """A schema whose unions name their lists: Java has no class of a `List<String>`, nor of a
    `Map<String, Object>`, which a free object of a union is with `additionalProperties`.

    `name` is what the lists' names begin with; their schemas are added to `lists`.
    """
    if isinstance(value, list):
        return [_with_named_lists(item, name, lists) for item in value]
    if not isinstance(value, dict):
        return value
    found = {
        key: item if key == "properties" else _with_named_lists(item, name, lists)
        for key, item in value.items()
    }
    if "properties" in value:
        found["properties"] = {
            key: _with_named_lists(field, name + _capitalized(key), lists)
            for key, field in value["properties"].items()
        }
    for union in {"anyOf", "oneOf"} & found.keys():
        if sum(member.get("type") != "null" for member in found[union]) > 1:
            found[union] = [_named(member, name, lists) for member in found[union]]
    return found


def _named(member: Schema, name: str, lists: Schemas) -> Schema:
    if member.get("type") == "object" and member.get("additionalProperties") is True:
        return {key: value for key, value in member.items() if key != "additionalProperties"}
    if member.get("type") != "array":
        return member
    name += _LISTS.get(member["items"].get("type"), "Items")
    lists[name] = member
    return {"$ref": f"#/components/schemas/{name}"}


def _capitalized(field: str) -> str:
    return "".join(part.capitalize() for part in field.split("_"))


def _without_titles(value: Any) -> Any:
    """A schema without pydantic's titles: generators would name inner types after them, as in
    `Content_1`."""
    if isinstance(value, list):
        return [_without_titles(item) for item in value]
    if not isinstance(value, dict):
        return value
    bare = {key: _without_titles(item) for key, item in value.items() if key != "title"}
    if "properties" in value:  # by name, and a field may be called `title`
        fields = value["properties"].items()
        bare["properties"] = {name: _without_titles(field) for name, field in fields}
    return bare
