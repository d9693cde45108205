"""Every target of the Makefile is made by a workflow, or stands below with the reason why not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.needs import needs

ROOT: Final = Path(__file__).parents[2]
MAKEFILES: Final = (ROOT / "Makefile", *sorted((ROOT / "tools" / "make").glob("*.mk")))
WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# Targets that no workflow makes, by the reason.
BY_HAND: Final = {
    "needs a GPU": "bench-gpu bench-gpu-serving evals-gpu test-gpu test-gpu-portable",
    "is run as a part of test-all, of another Makefile target, or of a release": (
        "checks format-check layers lint sbom test test-changed test-part tests-all tests-core"
        " tests-families tests-parts tests-service types wheel"
    ),
    "measures, and a shared machine's figures say nothing": "bench bench-pages",
    "writes files that a person looks at and commits; tests hold them current": (
        "client-pins docs format nano nano-report pictures pins playground release vllm-surface"
    ),
    "is for a person": "help serve verify",
}


def targets() -> set[str]:
    """The targets that `make help` lists, and those that they are made of."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in MAKEFILES)
    phony = " ".join(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)).split()
    return {name for name in phony if not name.startswith(("installed", "guides-"))}


def commands() -> set[str]:
    """The targets that the workflows make."""
    found: set[str] = set()
    for path in WORKFLOWS:
        for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
            matrix = job.get("strategy", {}).get("matrix", {})
            runs = [step["run"] for step in job["steps"] if "run" in step]
            for words in re.findall(r"(?:^|sudo )make ([^\n]*)", "\n".join(runs), re.MULTILINE):
                named = words.replace('"$TARGET"', " ".join(map(str, matrix.get("target", []))))
                found |= set(re.findall(r"(?<!\S)[a-z][a-z0-9-]*(?!\S)", named))
    return found


def test_every_target_is_made_or_says_why_not() -> None:
    by_hand = set(" ".join(BY_HAND.values()).split())
    assert targets() - commands() - by_hand == set(), "name them in a workflow, or above"
    assert by_hand & commands() == set()
    assert by_hand | commands() <= targets()


@needs("pages")
def test_owners_and_updates_name_folders_that_exist() -> None:
    owners = (ROOT / ".github" / "CODEOWNERS").read_text(encoding="utf-8")
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text(encoding="utf-8"))
    named = [*re.findall(r"^/\S+", owners, re.MULTILINE)]
    named += [update["directory"] for update in updates["updates"]]
    assert [path for path in named if not (ROOT / path.strip("/")).is_dir()] == []


@pytest.mark.heavy
def test_the_matrix_of_parts_is_their_folders() -> None:
    def listed(*arguments: str) -> list[str]:
        command = [sys.executable, "-m", "tests.without", "--list", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
        names: list[str] = json.loads(done.stdout)
        return names

    folders = sorted(path.parent.name for path in (ROOT / "parts").glob("*/about.py"))
    assert listed() == folders
    assert listed("--since", "0" * 40) == folders  # a first push: git has nothing before it
    assert set(listed("--since", "HEAD")) == set()
