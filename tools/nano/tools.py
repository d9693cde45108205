"""Tools on offer, and the lists of those written by hand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from service.conversation import Tool
from tools.nano.values import Param
from tools.nano.words import Split


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool and the ways to ask for it."""

    name: str
    description: str
    params: tuple[Param, ...]
    requests: tuple[str, ...] = ()  # empty: worded by rule, from the verb and the thing
    verb: str = ""
    thing: str = ""

    def tool(self) -> Tool:
        """Return the tool as a client offers it."""
        if not self.params:
            return Tool(self.name, self.description)
        required = [param.name for param in self.params if param.is_required]
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {param.name: param.schema() for param in self.params},
            "required": required,
        }
        return Tool(self.name, self.description, schema)


@cache
def listed_tools(split: Split) -> tuple[ToolSpec, ...]:
    """Read the tools written by hand for one side of the split."""
    file = "known_tools.txt" if split == "train" else "held_out_tools.txt"
    lines = Path(__file__).with_name(file).read_text().splitlines()
    return tuple(_parse(line) for line in lines if line and not line.startswith("#"))


def _parse(line: str) -> ToolSpec:
    name, description, params, requests = (part.strip() for part in line.split("|"))
    return ToolSpec(
        name,
        description,
        tuple(_parse_param(text) for text in re.split(r"\s+", params) if text),
        tuple(request.strip() for request in requests.split(" ; ")),
    )


def _parse_param(text: str) -> Param:
    name, kind = text.rstrip("!").split(":")
    choices = re.fullmatch(r"enum\((.*)\)", kind)
    listed = tuple(choices[1].split(",")) if choices else ()
    return Param(name, "enum" if choices else kind, text.endswith("!"), listed)
