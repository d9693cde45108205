"""What speaks of all parts: pages and tables that name them; skipped where a part was removed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from engines.parts import PartAbout, facets, folders
from service.__main__ import commands
from service.run.server import create_app
from service.settings.constants import constants
from service.settings.settings import Settings, env_name, flag_name, unknown_names
from tests.architecture.picture import PAGE, PICTURE, drawn, page_with
from tests.service.conftest import harmony_ids, make_client, make_runtime
from tools.docs import cli
from tools.docs.fields import with_tables
from tools.docs.reference import metrics_page, parts_page, settings_page

GOLDEN = Path(__file__).parent / "habits" / "golden"
DOCS = Path(__file__).parents[2] / "docs" / "settings.md"
PAGE_OF_PARTS = (DOCS.parent / "parts.md").read_text(encoding="utf-8")
ALL = {*re.findall(r"^\| `(\w+)` \|", PAGE_OF_PARTS, re.MULTILINE)}

__all__ = ["harmony_ids", "make_client", "make_runtime"]

pytestmark = pytest.mark.skipif(bool(ALL - folders().keys()), reason="a part was removed")


def test_each_part_says_what_it_is() -> None:
    abouts = facets("about", PartAbout)
    assert abouts.keys() == ALL, "run `make docs`"
    assert all((DOCS.parents[1] / about.docs).exists() for about in abouts.values())


def names_of_others() -> Any:
    from parts.habits.answers import by_name  # not where it was removed

    return by_name


def test_every_answer_names_flags_variables_and_commands_that_exist() -> None:
    ours = {flag for field in Settings.model_fields if (flag := flag_name(field))}
    by_name = names_of_others()
    answers = [
        said for kind in ("flags", "commands", "variables") for said in by_name(kind).values()
    ]
    options = {"--model", "--quick", "--help", "--engine"}  # of other commands
    for answer in answers:
        assert {*re.findall(r"--[a-z-]*[a-z]", answer)} <= ours | options, answer
        assert {*re.findall(r"`harmonium ([a-z-]+)", answer)} <= commands().keys(), answer
        variables = {*re.findall(r"NIM_[A-Z_]*[A-Z]", answer)}
        assert variables <= {env_name(field) for field in Settings.model_fields}, answer
    assert not by_name("flags").keys() & ours
    assert not by_name("commands").keys() & commands().keys()
    assert not by_name("variables").keys() & {env_name(field) for field in Settings.model_fields}


def test_every_variable_of_nims_is_a_setting_or_answered() -> None:
    names = (GOLDEN / "nim_variables.txt").read_text(encoding="utf-8").split()
    unknown = dict(unknown_names(dict.fromkeys(names, "1")))
    assert unknown.keys() <= names_of_others()("variables").keys() | set(map(env_name, constants()))


def test_every_route_that_an_answer_names_is_there(make_runtime: Any) -> None:
    app = create_app(make_runtime("<|return|>"))
    paths = {vars(route)["path"] for route in app.routes}
    answers = names_of_others()("routes")
    for answer in {*answers.values()}:
        for path in re.findall(r"/[a-z][a-z0-9/]*", answer):
            assert path in paths, answer
    assert not answers.keys() & paths


def test_every_route_that_the_readme_names_is_there(make_runtime: Any) -> None:
    app = create_app(make_runtime("<|return|>"))
    paths = {re.sub(r"{[^}]*}", "{}", vars(route)["path"]) for route in app.routes}
    page = (DOCS.parents[1] / "README.md").read_text(encoding="utf-8")
    table = page.split("\n## API\n\n", 1)[1].split("\n\n", 1)[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    named = [re.sub(r"{[^}]*}", "{}", name) for cell in cells for name in cell.split("`")[1::2]]
    # `…/cancel` is the end of a path, `POST /sleep` has its method, `GET` is another of the last.
    ends = [name.rpartition(" ")[2].removeprefix("…") for name in named if "/" in name]
    assert len(ends) > 30
    assert [end for end in ends if not any(path.endswith(end) for path in paths)] == []


def test_the_tables_of_fields_are_current() -> None:
    page = (DOCS.parent / "api.md").read_text(encoding="utf-8")
    assert with_tables(page) == page, "run: python -m tools.docs.fields docs/api.md"


def test_the_reference_page_is_current() -> None:
    remedy = "run: python -m tools.docs.reference settings > docs/settings.md"
    assert DOCS.read_text() == settings_page(), remedy


def test_the_page_of_parts_is_current() -> None:
    remedy = "run: python -m tools.docs.reference parts > docs/parts.md"
    assert parts_page() == PAGE_OF_PARTS, remedy


def test_the_page_of_metrics_is_current() -> None:
    remedy = "run: python -m tools.docs.reference metrics > docs/metrics.md"
    assert (DOCS.parent / "metrics.md").read_text() == metrics_page(), remedy


def test_the_page_of_commands_is_current_and_has_every_command() -> None:
    page = (DOCS.parent / "cli.md").read_text(encoding="utf-8")
    assert cli.render() == page, "run: make docs"
    assert [name for name in commands() if f"`{name}`" not in page] == []


def test_the_picture_of_rooms_is_current() -> None:
    """Drawing raises for a circle of rooms."""
    svg, part = drawn()
    assert (PICTURE.read_text(), PAGE.read_text()) == (svg, page_with(part)), "run `make docs`"
