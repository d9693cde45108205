"""Write docs/clients.md's table and configurations: `document.py RESULTS.xml`.

The clients are those of clients.toml, their versions those that are pinned, the results pytest's.
`document.py --check` writes nothing and exits with 1 where the page is not as it would be but for
the results.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from parts.terminal.clients.configurations import CONFIGURATIONS, Target

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "clients.md"
BEGIN, END = "<!-- Written by make clients. -->\n", "<!-- Up to here. -->\n"
URL, KEY = "http://127.0.0.1:8000", "KEY"
DOCUMENTED = Target(URL, "gpt-oss-20b", 131_072, has_key=True)

Client = dict[str, Any]
Failures = dict[str, list[str]]


def clients() -> list[Client]:
    """All of them, agents first."""
    definitions = tomllib.loads((HERE / "clients.toml").read_text())
    agents = [agent | {"checks": _tasks(agent)} for agent in definitions["agent"]]
    tools = [tool | {"checks": ["streamed chat"]} for tool in definitions["tool"]]
    return [*agents, *definitions["library"], *tools]


def _tasks(agent: Client) -> list[str]:
    picture = ["picture"] if agent.get("looks", True) else []
    day = ["day"] if agent.get("day", False) else []
    return ["tool loop", *picture, "small context", "long session", "overflow", *day]


def failures(results: Path) -> Failures:
    """By client, the checks that were not seen to pass."""
    passed = defaultdict(set)
    for case in ElementTree.parse(results).iter("testcase"):
        if (name := re.search(r"\[(.+):(.+)\]", case.attrib["name"])) and len(case) == 0:
            passed[name[1]].add(name[2])
    return {c["name"]: [k for k in c["checks"] if k not in passed[c["name"]]] for c in clients()}


def package(client: Client) -> str:
    """The name and the pinned version of its package."""
    name = client["package"]
    if "environment" in client:
        pins = (HERE / "python" / f"{client['environment']}.txt").read_text()
        found = re.search(rf"^{re.escape(name)}==(\S+)", pins, re.MULTILINE)
        assert found is not None, f"{name} is not pinned"
        return f"{name} {found[1]}"
    pinned: str = json.loads((HERE / "node" / "package.json").read_text())["dependencies"][name]
    if (alias := re.fullmatch(r"npm:(.+)@(.+)", pinned)) is not None:
        return f"{alias[1]} {alias[2]}"
    return f"{name} {pinned}"


def configuration(client: Client) -> tuple[str, str]:
    """The language and the text of what points a client here."""
    if "command" in client:
        return "sh", CONFIGURATIONS[client["command"]](DOCUMENTED)
    if "configuration" in client:
        return "sh", client["configuration"].strip()
    is_python = "environment" in client
    program = HERE / ("python" if is_python else "node") / client["program"]
    found = re.search(r"Configuration:\n(.+?)\n\s*\n", program.read_text(), re.DOTALL)
    assert found is not None, f"{program} does not say how it is configured"
    text = re.sub(r'f"\{URL\}(.*?)"|`\$\{URL\}(.*?)`', rf'"{URL}\1\2"', found[1])
    lines = re.sub(r"\bURL\b", f'"{URL}"', text).splitlines()
    indent = min(len(line) - len(line.lstrip()) for line in lines)
    return "python" if is_python else "js", "\n".join(line[indent:] for line in lines)


def table(failed: Failures) -> str:
    """What was run, and how it went."""
    lines = ["| Client | Package | Routes | Tested | Result |", "|---|---|---|---|---|"]
    for client in clients():
        wrong = failed[client["name"]]
        result = "passes" if not wrong else f"**fails**: {', '.join(map(_spelt, wrong))}"
        cells = (
            client["name"],
            package(client),
            ", ".join(f"`{route}`" for route in client["routes"]),
            ", ".join(map(_spelt, client["checks"])),
            result,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def when_full() -> str:
    """What each agent does when the server says that the context is full."""
    rows = [f"| {c['name']} | {c['when_full']} |" for c in clients() if "when_full" in c]
    return "\n".join(
        ["| Agent | When the server reports that the context is full |", "|---|---|", *rows]
    )


def configurations() -> str:
    """How each is pointed here, as it was run."""
    sections = []
    for client in clients():
        language, text = configuration(client)
        notes = f"\n{client['notes']}\n" if "notes" in client else ""
        sections.append(f"### {client['name']}\n{notes}\n```{language}\n{text}\n```\n")
    return "\n".join(sections)


def document(text: str, failed: Failures) -> str:
    """The document with its generated part made anew."""
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    parts = (f"{table(failed)}\n{when_full()}\n", "## Configuration\n", configurations())
    return f"{head}{BEGIN}\n{chr(10).join(parts)}\n{END}{tail}"


def _spelt(check: str) -> str:
    return check.replace("_", " ")


def main(argument: str) -> int:
    """Write the page, or check it; the exit code."""
    text = DOCUMENT.read_text()
    if argument == "--check":
        without_results = re.sub(r"\*\*fails\*\*: .+ \|$", "passes |", text, flags=re.MULTILINE)
        return int(document(text, {c["name"]: [] for c in clients()}) != without_results)
    DOCUMENT.write_text(document(text, failures(Path(argument))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
