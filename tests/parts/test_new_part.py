"""A part that is added as CONTRIBUTING says: its folder brings a route, a command, a metric."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import parts
from auth.base import Principal, Scope
from engines.parts import facets, folders
from service.__main__ import main
from tests.auth.conftest import Directory
from tests.needs import needs
from tests.service.conftest import (
    MakeRuntime,
    brief_document,
    harmony_ids,
    make_client,
    make_runtime,
)
from tools.docs.reference import metrics_page, parts_page

__all__ = ["brief_document", "harmony_ids", "make_client", "make_runtime"]

FILES = {
    "__init__.py": "",
    "about.py": """
from engines.parts import PartAbout
ABOUT = PartAbout("Greeter", "Greets.", "docs/api.md")
""",
    "routes.py": """
from fastapi import APIRouter
from auth.base import Scope
from service.api.common.operations import operation_id
from service.http.paths import PathRow, RouteGroup, Routes

router = APIRouter(tags=["Greetings"], generate_unique_id_function=operation_id)

@router.get("/v1/greetings/{name}")
async def greet(name: str) -> dict[str, str]:
    return {"text": f"Hello, {name}!"}

ROUTES = (
    Routes(
        rows=(PathRow("/v1/greetings/{name}", Scope.MODELS),),
        router=router,
        rank=90,
        groups=(RouteGroup("Greetings", "Says hello.", 90),),
    ),
)
""",
    "commands.py": """
from service.cli.loading import LOOK, LazyCommand
COMMANDS = {"greet": LazyCommand("parts.greeter.command", "greet", LOOK, "Say hello.")}
""",
    "command.py": """
import click

@click.command
def greet() -> None:
    click.echo("Hello!")
""",
    "series.py": """
from service.telemetry.series import gauge
SERIES = (gauge("greeted_requests", "Requests greeted.", lambda stats: stats.num_running),)
""",
}


@pytest.fixture(autouse=True)
def greeter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A part in a folder beside parts/."""
    folder = tmp_path / "greeter"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(parts, "__path__", [*parts.__path__, str(tmp_path)])
    known = folders()
    monkeypatch.setattr("engines.parts.folders", lambda: {**known, "greeter": folder})
    _forget()
    yield
    for name in [name for name in sys.modules if name.startswith("parts.greeter")]:
        del sys.modules[name]
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    from service.telemetry.series import engine_series

    facets.cache_clear()
    engine_series.cache_clear()


@pytest.mark.usefixtures("brief_document")
async def test_its_route_needs_its_scope_and_is_in_the_document(
    make_client: Any, make_runtime: MakeRuntime
) -> None:
    people = Directory(
        one=Principal("one", scopes=frozenset({Scope.MODELS})),
        other=Principal("other", scopes=frozenset({Scope.METRICS})),
    )
    client = await make_client(make_runtime("<|return|>", authenticator=people))

    async def ask(word: str) -> Any:
        headers = {"Authorization": f"Bearer {word}"}
        return await client.get("/v1/greetings/Ann", headers=headers)

    assert (await ask("one")).json() == {"text": "Hello, Ann!"}
    assert (await ask("other")).status_code == 403
    headers = {"Authorization": "Bearer one"}
    document = (await client.get("/openapi.json", headers=headers)).json()
    assert [*document["paths"]][-1] == "/v1/greetings/{name}"
    assert document["tags"][-1] == {"name": "Greetings", "description": "Says hello."}


def test_its_command_runs_and_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["greet"]) == 0
    assert capsys.readouterr().out == "Hello!\n"
    main(["--help"])
    assert re.search(r"^  greet +Say hello\.$", capsys.readouterr().out, re.MULTILINE)


@needs("habits")
def test_the_generated_pages_have_it() -> None:
    assert "| `greeter` | Greeter | Greets. |" in parts_page()
    assert "| `harmonium_engine_greeted_requests` | gauge |" in metrics_page()
