"""Docstrings name the parameters that there are: a renamed one leaves no old name behind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.architecture.test_size import PRODUCT, ROOT

# `name`: text, or "for `num` tokens": what is said of a parameter, or counted by one.
_DESCRIBED: Final = re.compile(r"(?:^|[.;] |\n)`([a-z_][a-z0-9_]*)`(?:, `([a-z_][a-z0-9_]*)`)*:")
_COUNTED: Final = re.compile(r"`(num|wanted|count)`")
_EITHER: Final = re.compile(r"`[a-z_0-9]+`[:,]|`(num|wanted|count)`")  # to parse few files only


def described() -> Iterator[tuple[str, str]]:
    """Names that the docstrings of functions describe and their parameters lack, with the place."""
    for room in PRODUCT:
        for path in sorted((ROOT / room).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            for function in functions_of(ast.parse(text)) if _EITHER.search(text) else ():
                place = f"{path.relative_to(ROOT)}: {function.name}"
                yield from ((place, name) for name in unknown_names(function))


def functions_of(place: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions, also those in classes and in functions; no expression is looked at."""
    for node in ast.iter_child_nodes(place):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from functions_of(node)


def unknown_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    text = ast.get_docstring(function) or ""
    found = {name for pattern in (_DESCRIBED, _COUNTED) for name in re.findall(pattern, text)}
    names = {name for each in found for name in ([each] if isinstance(each, str) else each)} - {""}
    given = function.args
    all_given = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return names - {each.arg for each in all_given if each is not None}


def test_docstrings_describe_parameters_that_exist() -> None:
    assert [*described()] == []


def test_a_name_that_is_left_behind_is_found() -> None:
    source = 'def reserve(wanted):\n    """Room for `num` tokens. `most`: at once."""'
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    assert unknown_names(function) == {"num", "most"}
