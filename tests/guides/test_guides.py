"""The guides' runner finds what it is to run, and no page links to nowhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.guides.run_guides import Block, blocks_of, differences

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
CODE = ("service", "engines", "profiles", "auth")
PAGES = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md"), ROOT / "tools" / "nano" / "README.md"]

GUIDE = """
```sh
echo one
```

```text
one
```

1. In a list:

    <!-- fails -->
    ```python
    raise SystemExit(1)
    ```

```yaml
not: run
```
"""


def test_blocks_are_found_with_what_they_show() -> None:
    assert blocks_of(GUIDE) == [
        Block("sh", "echo one\n", must_fail=False, shown=["one"]),
        Block("python", "raise SystemExit(1)\n", must_fail=True, shown=[]),
    ]


@pytest.mark.parametrize(
    ("promised", "output", "is_kept"),
    [
        ("…two…", "one two three\n", True),
        ("one…three", "one two three\n", True),
        ("one…four", "one two three\n", False),
        ('{"a": 1.0}', '{"a": 1x0}\n', False),
    ],
)
def test_a_promise_is_kept_word_for_word(promised: str, output: str, is_kept: bool) -> None:
    block = Block("sh", "", must_fail=False, shown=[promised])
    assert (differences(block, output) == []) is is_kept


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", prose(page)):
        led_to = page.parent / target if target else page
        assert led_to.exists(), target
        assert not anchor or led_to.suffix != ".md" or anchor in anchors(led_to), (target, anchor)


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    texts = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-") for text in texts}


def test_no_table_is_cut_by_an_empty_line() -> None:
    """Below an empty line a row is a new table, which its second line must head."""
    rows = r"^\n(\|.*)\n(?!\|[-:| ]+\|$)"
    cut = [(page.name, row) for page in PAGES for row in re.findall(rows, page.read_text(), re.M)]
    assert not cut


def test_the_air_gap_guide_fetches_what_builds_the_wheel_too() -> None:
    """pip fetches what is needed to build, but keeps it only where it is named."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    (line,) = re.findall(r"^python3 -m pip download .*", (GUIDES / "air-gap.md").read_text(), re.M)
    needed = {re.split(r"[<>=~! ]", one)[0] for one in build} | {"editables"}  # hatchling's, for -e
    assert needed <= set(line.split())


def test_messages_that_guides_explain_are_said() -> None:
    """Each heading of troubleshooting that quotes one, and each error code beside its status."""
    parts = [path for name in CODE for path in (ROOT / name).rglob("*.py")]
    code = " ".join(re.sub(r'"\s*f?"', "", path.read_text(encoding="utf-8")) for path in parts)
    guide = (GUIDES / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"`([^`]+)`", "".join(re.findall(r"^### .*$", guide, re.MULTILINE)))
    pieces = [part.strip(" :") for text in quoted for part in re.split("…|127.0.0.1|: ", text)]
    assert len(quoted) >= 6
    assert [piece for piece in pieces if piece not in code] == []
    texts = "".join(path.read_text(encoding="utf-8") for path in GUIDES.glob("*.md"))
    beside = r"`([a-z]+(?:_[a-z]+)*)` \(\d{3}\)|\b[45]\d\d `([a-z]+(?:_[a-z]+)*)`"
    codes = {first or second for first, second in re.findall(beside, texts)}
    assert len(codes) >= 8
    assert {each for each in codes if f'"{each}"' not in code} == set()
