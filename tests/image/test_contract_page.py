"""The guide to the operator names the tests that there are, and every one of them."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
GUIDE = HERE.parents[1] / "docs" / "guides" / "nim-operator.md"


def test_each_row_of_the_contract_has_its_test() -> None:
    tree = ast.parse((HERE / "test_nim_operator.py").read_text())
    there = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert set(re.findall(r"`(test_\w+)`", GUIDE.read_text())) == there
