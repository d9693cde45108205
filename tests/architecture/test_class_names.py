"""One public class name, one thing; the few that are there twice are named, with the reason."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Final

from engines.parts import folders

ROOT: Final = Path(__file__).parents[2]
_CLASS: Final = re.compile(r"^class ([A-Z]\w*)[(:\[]", re.MULTILINE)
# In schemas of the API a class is called as its type in the OpenAPI document is.
TWICE: Final = {
    "Message": "the schema of /v1/messages",
    "TokenLogprob": "the schema of log-probabilities",
    "ToolCall": "the schema of chat completions",
}


def test_a_public_class_name_means_one_thing() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for room in ("auth", "engines", "parts", "profiles", "service"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for name in _CLASS.findall(path.read_text(encoding="utf-8")):
                places[name].append(str(path.relative_to(ROOT)))
    double = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in double.items() if name not in TWICE} == {}
    if "messages" in folders():
        assert double.keys() == TWICE.keys()
