"""The guides' runner finds what it is to run, and no page links to nowhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.guides.run_guides import Block, blocks_of, differences

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md"), ROOT / "nano" / "README.md"]

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
