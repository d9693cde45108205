"""Nothing tells users to install `harmonium` from the package index: the name there is not ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FROM_THE_INDEX = re.compile(
    r"(?:pip|uv|pipx|poetry)\b[^`\n]*\b(?:install|add)\b[^`\n]*['\" ]harmonium\b(?!-|_)"
)
FOLDERS = ("docs", "engines", "service", "profiles", "charts", "tools")
KINDS = {".md", ".py", ".mk", ".toml", ".yaml", ".yml", ".ts", ".tsx", ".html", ".txt", ".ipynb"}


def test_no_text_tells_to_install_it_from_the_index() -> None:
    assert FROM_THE_INDEX.search("pip install 'harmonium[llama-cpp]'")
    assert FROM_THE_INDEX.search("uv pip install --no-deps harmonium")
    assert not FROM_THE_INDEX.search("pip install --no-deps harmonium-0.1.0-py3-none-any.whl")
    found = []
    for path in texts():
        text = path.read_text(encoding="utf-8")
        found += [f"{path.relative_to(ROOT)}: {m[0]}" for m in FROM_THE_INDEX.finditer(text)]
    assert not found


def texts() -> Iterator[Path]:
    """What a user may read: documents, messages in the code, recipes."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in KINDS and "node_modules" not in path.parts:
                yield path
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", "Dockerfile"))
