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
# The same for documents alone; the words have other uses in code.
IN_DOCUMENTS: Final = {
    r"(?:is|are) an? (?!\d+ )[45]\d\d(?! \w+\()": "gets a 4xx, returns 503",
    r"asked for(?! (?:an?|the) )": "requested",
    r"what (?:runs|is served|is shipped|was run|was tried|lies)": "a noun: the served model",
    r"(?:is|are) sure to": "is certain to",
    r"thoughts": "reasoning",
    r"turned away": "refused",
    r"put back and computed": "preempted and recomputed",
    r"by itself": "automatically, alone",
    r"(?:dies|died)": "crashes, crashed",
    r"come whole|came whole|comes whole": "complete",
    r"in (?:the same|one|this) sitting": "in the same session",
    r"in clear(?!ly)": "unencrypted",
    r"as \S+ (?:has|have) (?:it|them)": "as in ...",
    r"(?:run|built|measured|tested|tried) by us": "we have run ...",
    r"not (?:yet )?run here": "we have not run ...",
    r"whatever runs|who waits|who asks": "requests that wait",
    r"within reach": "reachable",
    r"thereof|therein|thereby": "of it, in it, by that",
    r"(?:key|folder|volume|file|checkpoint)s? of yours": "your key, your folder",
}
EXEMPT: Final = (
    "CHANGELOG.md",
    "tools/benchmarks/results/",
    "tools/prose.py",
)
_FOR_USERS: Final = ("README.md", "docs/", "charts/")  # the documents IN_DOCUMENTS is about
_NOT_FOR_USERS: Final = ("docs/decisions/", "docs/architecture.md")
ENDINGS: Final = ("*.md",)
PACKAGES: Final = ("parts", "service", "profiles", "engines", "auth")
FOLDERS: Final = {
    **dict.fromkeys(("docs", "tools", "tests"), ("*.md",)),
    **dict.fromkeys(PACKAGES, ("*.py", "*.yaml", "*.md")),
    "charts": ("*.yaml", "*.tpl", "*.txt", "*.md", "*dashboard.json"),
}
_FOREIGN = re.compile(r"(?:^|/)(?:\.|node_modules/|__pycache__/)")
_LINK = re.compile(r"\]\([^)]*\)")  # a file keeps its name
_CODE = re.compile(r"`[^`]*`")


def _any_of(phrases: dict[str, str]) -> re.Pattern[str]:
    return re.compile(
        "|".join(rf"(?P<p{n}>\b(?:{phrase})\b)" for n, phrase in enumerate(phrases)), re.I
    )


_FOUND = _any_of(PHRASES)
_FOUND_IN_DOCUMENTS = _any_of(IN_DOCUMENTS)


def findings(path: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Line, phrase and what to write instead, of each phrase in a file's text."""
    for line, part in _texts(path, text):
        read = _LINK.sub("", " ".join(part.split()))
        yield from _findings(line, read, _FOUND, PHRASES)
        if _is_for_users(path):
            yield from _findings(line, _CODE.sub("", read), _FOUND_IN_DOCUMENTS, IN_DOCUMENTS)


def _findings(
    line: int, text: str, pattern: re.Pattern[str], phrases: dict[str, str]
) -> Iterator[tuple[int, str, str]]:
    for found in pattern.finditer(text):
        assert found.lastgroup is not None
        yield line, found[0], list(phrases.values())[int(found.lastgroup[1:])]


def _is_for_users(path: str) -> bool:
    is_document = path.endswith(".md") and path.startswith(_FOR_USERS)
    return is_document and not path.startswith(_NOT_FOR_USERS)


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
