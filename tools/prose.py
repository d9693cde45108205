"""Find phrases that readers stumble over, with plainer ones: `python -m tools.prose`.

`make lint` runs it. It reads the texts of users (Markdown, messages, settings, the chart), and the
docstrings and comments of the product.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[1]
# A phrase, as a regular expression without regard to case, and what to write instead.
PHRASES: Final = {
    r"guess(?:ed|es)? tokens?|tokens? guessed|guesses": "draft tokens, speculation",
    r"mended": "repaired",
    r"foretells?|foretold": "estimate",
    r"pass(?:es|ed)? over in silence|(?:is|are|was|were) passed over": "ignored, skipped",
    r"(?:what|which|that|who|it|they) stands?|stands? (?:in|on|at|behind|still|for|beside)": "is",
    r"(?:goes|go|went|gone) on(?! top)": "continue",
    r"anew": "again",
    r"so many": "that many, or the number",
    r"whoever": "anyone who, or the caller",
    r"nobody|no one": "name what is absent: no client, no request",
    r"the like of|and the like": "similar",
    r"is to know|not to be had": "can get, not available",
    r"heeds?|heeded": "honour, follow",
    r"forbids to": "forbids",
    r"(?<!model )(?:is|are|was|were) told(?! apart| to| not to)": "gets, is shown, is reported",
    r"anybody|somebody": "a client, another process, or the passive",
    r"too dear|dearer": "expensive",
}
EXEMPT: Final = (
    "CHANGELOG.md",
    "docs/internals/",
    "tools/benchmarks/results/",
    "tools/prose.py",
)
ENDINGS: Final = ("*.md",)
FOLDERS: Final = {
    **dict.fromkeys(("docs", "tools", "tests"), ("*.md",)),
    **dict.fromkeys(("service", "profiles", "engines", "auth"), ("*.py", "*.yaml", "*.md")),
    "charts": ("*.yaml", "*.tpl", "*.txt", "*.md", "*dashboard.json"),
}
_FOREIGN = re.compile(r"(?:^|/)(?:\.|node_modules/|__pycache__/)")
_LINK = re.compile(r"\]\([^)]*\)")  # a file keeps its name
_FOUND = re.compile(
    "|".join(rf"(?P<p{n}>\b(?:{phrase})\b)" for n, phrase in enumerate(PHRASES)), re.I
)


def findings(path: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Line, phrase and what to write instead, of each phrase in a file's text."""
    for line, part in _texts(path, text):
        for found in _FOUND.finditer(_LINK.sub("", " ".join(part.split()))):
            assert found.lastgroup is not None
            instead = list(PHRASES.values())[int(found.lastgroup[1:])]
            yield line, found[0], instead


def _texts(path: str, text: str) -> Iterator[tuple[int, str]]:
    if path.endswith(".py"):
        yield from _python(text)
    else:
        yield from enumerate(text.splitlines(), 1)


def _python(text: str) -> Iterator[tuple[int, str]]:
    kinds = (tokenize.STRING, tokenize.COMMENT)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds and " " in token.string:  # not a name
            yield token.start[0], token.string


def files() -> list[str]:
    """The files whose texts are read."""
    found = [path for ending in ENDINGS for path in ROOT.glob(ending)]
    for folder, endings in FOLDERS.items():
        found += [path for ending in endings for path in (ROOT / folder).rglob(ending)]
    names = (path.relative_to(ROOT).as_posix() for path in found)
    return sorted(
        name for name in names if not name.startswith(EXEMPT) and not _FOREIGN.search(name)
    )


def main() -> int:
    """Print each finding; 1 if there are any."""
    count = 0
    for path in files():
        for line, phrase, instead in findings(path, (ROOT / path).read_text(encoding="utf-8")):
            print(f"{path}:{line}: {phrase!r}; write: {instead}")
            count += 1
    if count:
        print(f"{count} phrases to rewrite")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
