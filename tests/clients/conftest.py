"""A scripted server with API keys, and the foreign clients as processes that talk to it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INSTALLED = ROOT / ".cache" / "clients"
NODE_BIN = INSTALLED / "node" / "node_modules" / ".bin"
MODEL = "gpt-oss-20b"
DOCUMENTED_URL = "http://127.0.0.1:8000"
SMALL_CONTEXT = 26_624  # of gpt-oss-20b on a CPU with 32 GB: tests/profiles/machines.md
PATIENCE_S = 180
CLIENT_LIMIT_S = 600  # for one that hangs: where no other host answers, LiteLLM takes 90 s


@dataclass(frozen=True)
class Server:
    """Where the server listens and a key it takes."""

    url: str
    key: str
    pid: int = 0
    log: list[str] = field(default_factory=list, compare=False)  # its lines until now


@dataclass(frozen=True)
class Ended:
    """What a client left behind."""

    status: int
    output: str
    log: str


Client = dict[str, Any]
Run = Callable[..., Ended]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`harmonium serve` with API keys, whose model is model.py."""
    with serving(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="session")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The same with the context that gpt-oss-20b gets on a small machine."""
    folder = tmp_path_factory.mktemp("small")
    with serving(folder, max_model_len=SMALL_CONTEXT) as server:
        yield server


@pytest.fixture(scope="session")
def lesser_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The same with less context than the clients are told, and room for what they put back."""
    with serving(tmp_path_factory.mktemp("lesser"), max_model_len=40_960) as server:
        yield server


@contextlib.contextmanager
def serving(
    folder: Path,
    *,
    flags: Sequence[str] = (),
    has_keys: bool = True,
    script: Path = HERE / "model.py",
    environment: Mapping[str, str] | None = None,
    **more: Any,
) -> Iterator[Server]:
    """A server with its own key, ended with the block."""
    keys = folder / "keys.json"
    scopes = "--scopes=inference,models,batch"
    created = ("-m", "service", "keys", "--path", str(keys), "create", "foreign clients", scopes)
    key = subprocess.check_output([sys.executable, *created], text=True, cwd=ROOT).split()[-1]
    options = {"script_file": str(script), "step_s": 0.002, **more}
    own = ["--server-port=0", f"--served-model-name={MODEL}", f"--cache-path={folder}"]
    own.append(f"--api-keys-path={keys}" if has_keys else "--auth=off")
    own.append("--ollama-port=0")  # the routes, and no port beside the server's
    program = str(ROOT / "tests" / "service" / "serve_scripted.py")
    command = [sys.executable, program, json.dumps(options), "serve", *own, *flags]
    variables = {**os.environ, **(environment or {})}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stderr is not None
        ready = next((line for line in process.stderr if "Ready after" in line), None)
        assert ready is not None, "the server ended before it was ready"
        log: list[str] = []
        # A full pipe would block the server.
        reader = threading.Thread(target=log.extend, args=(process.stderr,))
        reader.start()
        yield Server(ready.split(" on ")[-1].strip(), key, process.pid, log)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        reader.join(PATIENCE_S)


@pytest.fixture(scope="session")
def run(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a client to its end in a home of its own; nothing it started outlives it."""

    def run(
        *command: str, folder: Path | None = None, bin: Path | None = None, at: Server = server
    ) -> Ended:
        path = [str(part) for part in (bin, NODE_BIN, os.environ["PATH"]) if part]
        environment = {
            "PATH": os.pathsep.join(path),
            "HOME": str(tmp_path_factory.mktemp("home")),
            "LANG": "C.UTF-8",
            "HARMONIUM_URL": at.url,
            "HARMONIUM_API_KEY": at.key,
        }
        process = subprocess.Popen(
            command,
            cwd=folder or tmp_path_factory.mktemp("folder"),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, log = process.communicate(timeout=CLIENT_LIMIT_S)
        except subprocess.TimeoutExpired:
            _end_group(process.pid)
            output, log = process.communicate()
            log += f"\nended after {CLIENT_LIMIT_S} s"
        _end_group(process.pid)
        return Ended(process.returncode, output, log)

    return run


@pytest.fixture(scope="session")
def run_as_documented(server: Server, run: Run) -> Run:
    """Run the command that users are told to paste, then what the test adds to it.

    `believed`: the context that the client is told, in place of the real one.
    """

    def run_as_documented(
        client: Client,
        *more: str,
        folder: Path,
        at: Server = server,
        believed: int | None = None,
    ) -> Ended:
        if believed is None:
            command = configuration(client, at).replace(DOCUMENTED_URL, at.url)
        else:
            from parts.terminal.clients.configurations import CONFIGURATIONS, Target

            target = Target(at.url, MODEL, believed, has_key=True)
            command = CONFIGURATIONS[client["command"]](target)
        bin = INSTALLED / client["environment"] / "bin" if "environment" in client else None
        words = [command, client["arguments"], *map(shlex.quote, more)]
        return run("bash", "-c", " ".join(words), folder=folder, bin=bin, at=at)

    return run_as_documented


def configuration(client: Client, server: Server) -> str:
    """The lines that a user pastes: what `harmonium clients` prints, or a page of ours has."""
    if "command" not in client:
        pasted: str = client["configuration"]
        return pasted.strip()
    ours = (sys.executable, "-m", "service", "clients", client["command"], "--url", server.url)
    environment = os.environ | {"HARMONIUM_API_KEY": server.key}
    return subprocess.check_output(ours, env=environment, text=True, cwd=ROOT).strip()


@pytest.fixture(scope="session")
def failures(run: Run) -> Callable[[Client], dict[str, str | None]]:
    """Run all checks of a library, once; gives for each what went wrong, if anything."""
    known: dict[str, dict[str, str | None]] = {}

    def failures(client: Client) -> dict[str, str | None]:
        name = client["name"]
        if name not in known:
            ended = run(*_command(client))
            lines = [line for line in ended.output.splitlines() if line.startswith('{"check"')]
            found = {entry["check"]: entry["error"] for entry in map(json.loads, lines)}
            unsaid = f"{client['program']} ended before this check:\n{ended.log}"
            known[name] = dict.fromkeys(client["checks"], unsaid) | found
        return known[name]

    return failures


def _command(client: Client) -> list[str]:
    program = client["program"]
    if "environment" in client:
        python = INSTALLED / client["environment"] / "bin" / "python"
        files = [HERE / "python" / name for name in ("run_checks.py", program)]
    else:
        python = Path("node")
        for file in (HERE / "node").glob("*.mjs"):
            shutil.copy(file, INSTALLED / "node")  # Node looks for packages beside the program
        files = [INSTALLED / "node" / name for name in ("run_checks.mjs", program)]
    return [str(python), *map(str, files), *client["checks"]]


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
