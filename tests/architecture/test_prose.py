"""The wording of texts: what `make lint` refuses, and where it looks."""

from __future__ import annotations

import pytest

from tools import prose


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The stream goes on.", ["goes on"]),
        ("Nobody starves, and so many wait.", ["Nobody", "so many"]),
        ("The mask goes on top of it.", []),
        ("[23](0023-a-head-guesses-behind-the-step.md)", []),
        ("The stream continues.", []),
    ],
)
def test_a_phrase_is_found_wherever_it_is(text: str, found: list[str]) -> None:
    assert [phrase for _, phrase, _ in prose.findings("README.md", text)] == found


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("docs/api.md", ["asked for", "is a 400"]),
        ("docs/decisions/0001-four-packages-in-one-distribution.md", []),
        ("service/x.py", []),
    ],
)
def test_documents_for_users_have_more_rules(path: str, found: list[str]) -> None:
    text = '"""What was asked for is a 400, and `a thing asked for` is code."""\n'
    assert [phrase for _, phrase, _ in prose.findings(path, text)] == found


def test_of_a_program_only_texts_and_comments_are_read() -> None:
    program = '''
"""It is made anew."""
nobody = "nobody"  # a name
log("so many of them")
'''
    assert [phrase for _, phrase, _ in prose.findings("service/x.py", program)] == [
        "anew",
        "so many",
    ]


def test_the_texts_of_this_checkout_are_read() -> None:
    files = prose.files()
    assert {"README.md", "service/settings/serving.py", "docs/api.md"} <= set(files)
    assert "CHANGELOG.md" not in files
