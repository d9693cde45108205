"""/openapi.json as code generators need it; `make sdks` lets them write clients from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from auth.authenticators import ApiKeys
from engines.parts import folders
from service.api.chat.schema import ChatRequest
from service.http.failures import failure_of
from service.run import texts
from service.run.openapi import Application
from service.run.server import create_app

Fixture = Callable[..., Any]
Object = dict[str, Any]


@pytest.fixture(scope="module")
def app(make_runtime: Fixture) -> Application:
    """Its document takes half a second to make."""
    return create_app(make_runtime("<|return|>"))


@pytest.fixture(scope="module")
def document(app: FastAPI) -> Object:
    return app.openapi()


@pytest.fixture(scope="module")
def schemas(document: Object) -> Object:
    return document["components"]["schemas"]  # type: ignore[no-any-return]


def operations(document: Object) -> Iterator[Object]:
    for methods in document["paths"].values():
        yield from methods.values()


def objects(value: Any) -> Iterator[Object]:
    """All objects in a document."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from objects(item)


def test_names_are_words_that_differ_in_more_than_case(document: Object, schemas: Object) -> None:
    assert [name for name in schemas if not name.isalnum()] == []
    assert len({name.lower() for name in schemas}) == len(schemas)  # they become files
    ids = [operation["operationId"] for operation in operations(document)]
    assert len(set(ids)) == len(ids)
    assert [id for id in ids if not id.isidentifier() or "v1" in id] == []


def test_the_requests_answers_and_errors_are_in_it(schemas: Object) -> None:
    assert {"ChatRequest", "ChatCompletion", "ErrorEnvelope"} <= schemas.keys()


def test_each_route_has_its_label_in_metrics(app: Application, document: Object) -> None:
    for path in document["paths"]:
        assert app.paths.row(path.replace("{", "").replace("}", "")).label == path


def test_no_field_is_only_null(schemas: Object) -> None:
    """The Python of openapi-generator has no type for it."""
    fields = [field for value in schemas.values() for field in value.get("properties", {}).items()]
    assert [name for name, schema in fields if schema.get("type") == "null"] == []


def test_no_truth_is_constant(schemas: Object) -> None:
    """The Java of openapi-generator makes a class of it, and cannot give that its value."""
    assert [value for value in objects(schemas) if isinstance(value.get("const"), bool)] == []


def test_references_lead_somewhere_and_every_schema_is_referred_to(
    document: Object, schemas: Object
) -> None:
    refs = {value["$ref"] for value in objects(document) if isinstance(value.get("$ref"), str)}
    assert {ref.removeprefix("#/components/schemas/") for ref in refs} == schemas.keys()


def test_every_operation_is_in_a_group_that_is_described(document: Object) -> None:
    tags = [operation["tags"] for operation in operations(document)]
    assert {tag for (tag,) in tags} == {tag["name"] for tag in document["tags"]}


def test_it_says_which_routes_need_a_key(make_runtime: Fixture, document: Object) -> None:
    locked = create_app(make_runtime("<|return|>", authenticator=ApiKeys(["secret"])))
    few = {"/v1/models", "/v1/health/live"}  # the document of all routes takes seconds
    locked.router.routes = [each for each in locked.router.routes if vars(each)["path"] in few]
    either: list[Object] = [{"bearer": []}, {"api_key": []}]
    for told, needed in ((document, [*either, {}]), (locked.openapi(), either)):
        assert told["paths"]["/v1/models"]["get"]["security"] == needed
        assert told["paths"]["/v1/health/live"]["get"]["security"] == []
        assert told["components"]["securitySchemes"].keys() == {"bearer", "api_key"}


def test_a_route_that_streams_says_so(document: Object) -> None:
    content = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert [*content] == ["application/json", "text/event-stream"]


def test_every_route_tells_of_its_errors_in_the_shape_of_its_api(
    app: Application, document: Object, schemas: Object
) -> None:
    for route, operation in texts.operations(document):
        dialect = app.paths.row(route.partition(" ")[2]).dialect
        for statuses in ("4XX", "5XX"):
            schema = operation["responses"][statuses]["content"]["application/json"]["schema"]
            name = schema["$ref"].rpartition("/")[2]
            fields = dialect.error_body(failure_of(ValueError()))
            assert schemas[name]["properties"].keys() == fields.keys(), route


async def test_no_route_takes_a_body_above_the_bound(
    make_client: Fixture, make_runtime: Fixture, document: Object
) -> None:
    client = await make_client(make_runtime("<|return|>", max_body_bytes=1000))
    for route, operation in texts.operations(document):
        method, _, path = route.partition(" ")
        if "application/json" in operation.get("requestBody", {}).get("content", {}):
            answer = await client.request(method, path, json={"a": "a" * 1000})
            assert answer.status_code == 413, f"{route}: make its router by json_router"


def test_what_is_refused_is_not_in_it(schemas: Object) -> None:
    schema, refused = schemas[ChatRequest.__name__], {"audio", "functions", "prediction"}
    assert refused <= ChatRequest.model_fields.keys()
    assert refused & schema["properties"].keys() == set()
    assert schema["additionalProperties"] is False


def test_every_field_is_described(document: Object, schemas: Object) -> None:
    """A field's words are in `Field(description=…)`, or in service/api/texts.yaml or the part's."""
    bodies = {
        route: content["schema"]
        for route, operation in texts.operations(document)
        for content in operation.get("requestBody", {}).get("content", {}).values()
    }
    missing = [
        f"{name}.{field}: describe it in texts.yaml"
        for name, schema in (schemas | bodies).items()
        for field, about in schema.get("properties", {}).items()
        if not about.get("description")
    ]
    missing += [
        f"{route} {parameter['name']}: describe it in `any` of texts.yaml"
        for route, operation in texts.operations(document)
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    missing += [f"{name}: give it a docstring" for name in schemas if not is_told(schemas[name])]
    assert missing == []


def is_told(schema: Object) -> bool:
    return "description" in schema or "properties" not in schema  # a list or object of a union


def test_a_line_of_texts_is_all_that_is_said_of_a_field(schemas: Object) -> None:
    words, wrong = texts.Descriptions(), []
    for title, lines in ((t, own) for path in texts.files() for t, own in tables(path)):
        own = {name: schemas[name].get("properties", {}) for name in title if name in schemas}
        for field in (field for key in lines for field in texts.each(key) if field.isidentifier()):
            said = {name: about[field] for name, about in own.items() if field in about}
            is_refused = lines.get(field, "").startswith("refused")
            wrong += [] if said or is_refused else [f"{title} {field}: there is no such field"]
            wrong += [
                f"{name}.{field} has a description in Python, and a line: remove one"
                for name, about in said.items()
                if about["description"] != words.of(name, field)
            ]
    assert wrong == []


def tables(path: Path) -> Iterator[tuple[list[str], texts.Texts]]:
    """The schemas of each table of a file, with its lines."""
    for title, lines in texts.read(path).tables.items():
        if title != texts.ANY and "/" not in title:
            yield texts.each(title.partition(" (")[0]), lines


async def test_every_body_has_examples_that_are_taken(
    make_client: Fixture, make_runtime: Fixture, document: Object
) -> None:
    client = await make_client(make_runtime(*["<|channel|>final<|message|>Hi.<|return|>"] * 16))
    for route, operation in texts.operations(document):
        method, _, path = route.partition(" ")
        if path == "/v1/messages/batches" and "messages" not in folders():
            continue  # a batch of a route that this server has not
        for kind, content in operation.get("requestBody", {}).get("content", {}).items():
            examples = content.get("examples", {})
            assert examples, f"{route}: put an example into `bodies` of texts.yaml"
            for name, example in examples.items():
                body = example["value"]
                sent: Object = {"json": body}
                if kind == "multipart/form-data":
                    files = {"file": ("in.jsonl", body["file"])}
                    sent = {"data": {**body, "file": None}, "files": files}
                answer = await client.request(method, path, **sent)
                assert answer.status_code in (200, 404, 501), f"{route} {name}: {answer.text}"


def test_no_field_is_a_literal_of_a_language(schemas: Object) -> None:
    """Generators put an underscore behind keywords, and leave `true` as it is."""
    literals = {"true", "false", "null"}
    assert {
        name for name, each in schemas.items() if literals & {*each.get("properties", ())}
    } == set()


def test_a_query_that_must_be_there_has_an_example(document: Object) -> None:
    lacking = [
        f"{route} {each['name']}"
        for route, operation in texts.operations(document)
        for each in operation.get("parameters", ())
        if each["in"] == "query" and each["required"] and not each["schema"].get("examples")
    ]
    assert lacking == []  # /docs would show a request that is refused


def test_a_list_or_free_object_beside_something_else_has_a_name(schemas: Object) -> None:
    unions = [
        [member for member in value[key] if member.get("type") != "null"]
        for value in objects(schemas)
        for key in ("anyOf", "oneOf")
        if key in value
    ]
    assert unions
    beside = [member for union in unions if len(union) > 1 for member in union]
    assert [member for member in beside if member.get("type") == "array"] == []
    assert [member for member in beside if member.get("additionalProperties") is True] == []


async def test_it_travels_compressed_to_those_who_take_that(app: FastAPI, document: Object) -> None:
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
        whole = await client.get("/openapi.json", headers={"Accept-Encoding": "identity"})
        small = await client.get("/openapi.json", headers={"Accept-Encoding": "gzip"})
    assert whole.json() == small.json() == document
    assert "content-encoding" not in whole.headers
    assert small.headers["content-encoding"] == "gzip"
    assert small.headers["vary"] == whole.headers["vary"] == "Accept-Encoding"
    assert int(small.headers["content-length"]) < int(whole.headers["content-length"]) / 4
