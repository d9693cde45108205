"""The audit's verdict: vulnerable and unknown both fail; only looked up and clean passes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def audit() -> Any:
    spec = importlib.util.spec_from_file_location(
        "audit", ROOT / "tools" / "packaging" / "audit.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def looked_up(name: str, version: str, *vulnerabilities: str) -> dict[str, Any]:
    vulns = [{"id": id, "fix_versions": ["9"]} for id in vulnerabilities]
    return {"name": name, "version": version, "vulns": vulns}


PINS = {"a": "1", "b-c": "2"}


def test_looked_up_and_clean_passes(audit: Any) -> None:
    report = {"dependencies": [looked_up("A", "1"), looked_up("b_c", "2")]}
    assert audit.dependency_complaints(report, PINS) == []


def test_a_known_vulnerability_is_named(audit: Any) -> None:
    report = {"dependencies": [looked_up("a", "1", "CVE-1"), looked_up("b-c", "2")]}
    assert audit.dependency_complaints(report, PINS) == ["a 1: CVE-1, fixed in 9"]


def test_an_advisory_is_accepted_by_any_of_its_ids(audit: Any) -> None:
    item = looked_up("a", "1", "PYSEC-1", "PYSEC-2")
    item["vulns"][0]["aliases"] = ["CVE-2024-23342"]
    report = {"dependencies": [item, looked_up("b-c", "2")]}
    assert audit.dependency_complaints(report, PINS) == ["a 1: PYSEC-2, fixed in 9"]


@pytest.mark.parametrize(
    "second",
    [
        [{"name": "b-c", "skip_reason": "Dependency not found on PyPI: b-c (2)"}],
        [looked_up("b-c", "3")],
        [],
    ],
    ids=["skipped", "another version", "left out"],
)
def test_what_was_not_looked_up_is_not_clean(audit: Any, second: list[Any]) -> None:
    report = {"dependencies": [looked_up("a", "1"), *second]}
    assert audit.dependency_complaints(report, PINS) == ["not looked up: 1 of 2: b-c==2"]


@pytest.mark.heavy
def test_a_tool_that_says_nothing_ends_it(audit: Any) -> None:
    with pytest.raises(SystemExit, match="no report"):
        audit.run("false")


def test_every_line_of_the_constraints_pins_a_version(audit: Any) -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert len(audit.read_pins(text)) > 50
    with pytest.raises(ValueError, match="fastapi"):
        audit.read_pins("fastapi>=1")


def test_a_finding_in_the_code_must_be_reviewed(
    audit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "REVIEWED", {("B1", "x.py"): "read"})
    old = {"test_id": "B1", "filename": "./x.py", "line_number": 1, "issue_text": "old"}
    new = {"test_id": "B2", "filename": "x.py", "line_number": 7, "issue_text": "bad"}
    assert audit.code_complaints({"results": [old], "errors": []}) == []
    assert audit.code_complaints({"results": [old, new], "errors": []}) == ["x.py:7: B2: bad"]
    assert audit.code_complaints({"results": [], "errors": []}) == [
        "x.py: B1 is reviewed but not found"
    ]
    unread = {"filename": "y.py", "reason": "syntax error"}
    assert audit.code_complaints({"results": [old], "errors": [unread]}) == ["y.py: syntax error"]


LOCK: dict[str, Any] = {
    "packages": {"": {}, "node_modules/marked": {}, "node_modules/a/node_modules/b": {}}
}


def test_the_pages_packages_are_looked_up_too(audit: Any) -> None:
    assert audit.page_complaints({"vulnerabilities": {}}, LOCK) == []
    found = {"severity": "high", "via": [{"title": "XSS in marked"}, "b"]}
    told = audit.page_complaints({"vulnerabilities": {"marked": found}}, LOCK)
    assert told == ["marked: high, XSS in marked; b"]
    refused = audit.page_complaints({"message": "405 Method Not Allowed"}, LOCK)
    assert refused == [
        "not looked up: 2 npm packages of parts/pages/source: 405 Method Not Allowed. "
        "Run this where npm's public registry answers; mirrors often refuse audits."
    ]
