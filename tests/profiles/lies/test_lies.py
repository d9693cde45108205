"""Each lie of a source ends in one error, in bounded memory, with nothing written elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from profiles.download.source import read_source
from profiles.store.user_checkpoint import folder_of
from tests.profiles.lies.liar import Answer, lying
from tests.profiles.lies.table import ELSEWHERE
from tests.profiles.lies.tellers import LIES, Lie

PEAK_MB = 300  # of the whole process
COMMAND = "harmonium download-to-cache: "


@dataclass
class Runner:
    """A process that has all modules, and forks for each command."""

    process: subprocess.Popen[str]
    url: str
    answers: dict[str, Answer] = field(default_factory=dict)

    def run(self, environment: dict[str, str], *arguments: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = json.dumps({"environment": environment, "arguments": arguments})
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        result: dict[str, Any] = json.loads(self.process.stdout.readline())
        return result


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    answers: dict[str, Answer] = {}
    plain = {n: v for n, v in os.environ.items() if "proxy" not in n.lower() and n[:4] != "NIM_"}
    command = [sys.executable, "-m", "tests.profiles.lies.runner"]
    with (
        lying(answers) as url,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=plain
        ) as process,
    ):
        yield Runner(process, url, answers)
        assert process.stdin is not None
        process.stdin.close()


# Every third in each run, of every source; the others in `make test-slow`.
EACH = [
    pytest.param(name, marks=() if index % 3 == 0 else pytest.mark.slow)
    for index, name in enumerate(LIES)
]


@pytest.mark.parametrize("name", EACH)
def test_it_costs_one_line(name: str, runner: Runner, tmp_path: Path) -> None:
    lie, cache = LIES[name], tmp_path / "cache"
    runner.answers.clear()
    runner.answers.update(lie.answers(runner.url))
    uri = lie.uri.format(url=runner.url, folder=tmp_path / "model")
    is_local = lie.uri == "{folder}"
    folder = Path(uri) if is_local else folder_of(read_source(uri, "X"), cache)
    folder.mkdir(parents=True)
    for file, content in lie.kept.items():
        text, size = content if isinstance(content, tuple) else (content, len(content))
        (folder / file).write_bytes(text)
        os.truncate(folder / file, size)
    home = tmp_path / "home"
    home.mkdir()
    before = elsewhere(tmp_path, folder)
    environment = {
        "HOME": str(home),
        "NIM_CACHE_PATH": str(cache),
        "NIM_MODEL_PATH": uri,
        "HF_ENDPOINT": runner.url,
        "NGC_CLI_API_URL": runner.url,
        "NGC_API_KEY": "nvapi-1",
        "AWS_ENDPOINT_URL": runner.url,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "eu-west-1",
    }
    result = runner.run(environment, *lie.arguments)
    said = [line for line in result["text"].splitlines() if line.startswith(COMMAND)]
    assert "Traceback" not in result["text"], result
    if lie.said:
        assert result["status"] == 1, result
        assert len(said) == 1, result
        assert re.search(lie.said, said[0]), result
        assert said[0].isprintable()
        assert len(said[0]) < 600
    else:
        assert (result["status"], said) == (0, []), result
    assert result["peak_mb"] < PEAK_MB, result
    assert elsewhere(tmp_path, folder) == before
    assert not ELSEWHERE.exists()
    check_own_files(folder, uri, lie)


def elsewhere(root: Path, folder: Path) -> dict[str, bytes | None]:
    """All files but for the model's, its lease and the manifest that was asked for."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
        if not path.is_relative_to(folder)
        and path.name not in (f".{folder.name}.lease", "manifest.json")
    }


def check_own_files(folder: Path, uri: str, lie: Lie) -> None:
    """What a source sent is in none of the files that we keep in its model's folder."""
    for name in (".listing.json", ".gguf.json"):
        if name in lie.kept:
            assert (folder / name).read_bytes() == lie.kept[name]
    if (listing := folder / ".listing.json").exists() and listing.name not in lie.kept:
        assert json.loads(listing.read_text())["source"] == str(read_source(uri, "X"))
    if (verified := folder / ".verified.json").exists():
        names = json.loads(verified.read_text()).keys()
        assert all((folder / name).is_file() for name in names)
    ours = {".listing.json", ".gguf.json", ".tensors.json", ".verified.json", ".partial"}
    assert {path.name for path in folder.glob(".*")} <= ours
    assert not (folder / "packed.json").exists()
