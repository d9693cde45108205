"""Every command of the rendered objects, run as it is rendered on a machine without a GPU.

Only what a machine without containers cannot have differs: files lie below a folder of the test,
the cache too, and ports are free ones. `serve` and downloads of large models get `--dry-run`.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import loopback
from tests.auth.test_tls import Authority
from tests.chart.commands import Command, commands_of
from tests.profiles.hub import serving
from tests.profiles.store.test_store import shard

pytestmark = pytest.mark.chart

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
MOUNTED = ("/etc/harmonium", "/mnt/models", "/models", "/var/lib/harmonium", "/var/run/kserve")
SOCKETS = "/run/harmonium"
NO_DYNAMO = "run `python3 tools/install.py dynamo`"
BASE = ["image.repository=registry.example.com/harmonium", "prefetch.enabled=true"]
CLAIM = [*BASE, "cache.type=existingClaim", "cache.existingClaim=m"]


def of_scenarios() -> dict[str, Command]:
    """Each once, named by the first scenario that has it; the golden files are what is rendered."""
    found: dict[str, Command] = {}
    seen = set()
    for path in sorted((Path(__file__).parent / "golden").glob("*.yaml")):
        items = [item for item in yaml.safe_load_all(path.read_text(encoding="utf-8")) if item]
        for command in commands_of(items):
            # All but our own program looks at names alone, or at nothing.
            given = command.environment
            key = (command.words, *(given.items() if command.words[0] == "harmonium" else given))
            if key not in seen:
                found[f"{path.stem}: {' '.join(command.words[:4])[:40].strip()}"] = command
            seen.add(key)
    return found


COMMANDS = of_scenarios()


def run(
    command: Command, folder: Path, *more: str, words: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run it with its environment, and nothing of ours but the paths."""
    below = {
        name: str(folder / value.lstrip("/"))
        if value.startswith(MOUNTED)
        else value.replace(SOCKETS, f"{folder}{SOCKETS}")
        for name, value in command.environment.items()
    }
    inherited = {name: os.environ[name] for name in ("HOME",) if name in os.environ}
    ours = {"PATH": f"{BIN}:{os.environ['PATH']}", "NIM_CACHE_PATH": str(folder / "cache")}
    return subprocess.run(
        [*(words or command.words), *more],
        env=inherited | below | ours,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        preexec_fn=command.limit if command.memory else None,
    )


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory, nano_checkpoint: Path) -> Path:
    """What Secrets and volumes hold: certificates, keys, a checkpoint."""
    folder = tmp_path_factory.mktemp("pod")
    for name in ("etc/harmonium/tls", "etc/harmonium/dynamo", "var/run/kserve/tls"):
        place = folder / name
        place.mkdir(parents=True)
        authority = Authority(place, "ca")
        certificate, key = authority.issue("tls", is_client=False)
        certificate.rename(place / "tls.crt")
        key.rename(place / "tls.key")
        authority.path.rename(place / "ca.crt")
    keys = folder / "etc/harmonium/keys"
    keys.mkdir()
    made = [str(BIN / "harmonium"), "keys", "--path", str(keys / "keys.json"), "create", "x"]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    (folder / "var/lib/harmonium").mkdir(parents=True)
    (folder / SOCKETS.lstrip("/")).mkdir(parents=True)
    (folder / "mnt").mkdir()
    (folder / "models").mkdir()
    (folder / "mnt/models").symlink_to(nano_checkpoint)
    (folder / "models/gpt-oss-20b").symlink_to(nano_checkpoint)
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_a_rendered_command_runs(name: str, mounted: Path, tmp_path: Path) -> None:
    command = COMMANDS[name]
    match command.words:
        case ("harmonium", "serve"):
            serves(command, mounted)
        case ("harmonium", "dynamo-worker"):
            works_for_dynamo(command, mounted)
        case ("harmonium", "download-to-cache", *_):
            downloads(command, mounted)
        case ("sleep", seconds):
            assert float(seconds) > 0
            assert run(command, mounted, words=("sleep", "0")).returncode == 0
        case ("python", "-m", "service.http.probe", "8000", "mtls"):
            probes(command, mounted)
        case ("python", "-m", "parts.sandbox.host", tool, _):
            hosts(command, mounted, tool)
        case ("test", "-S", path):
            assert path.startswith(f"{SOCKETS}/")
            assert run(command, mounted).returncode == 1  # no host of a tool runs here
        case ("python", "-c", _):
            asks_the_service(command, mounted)
        case _:
            pytest.fail(f"no test runs {command.words}")


def serves(command: Command, mounted: Path) -> None:
    done = run(command, mounted, "--dry-run")
    if done.returncode != 0:  # what it lacks here is the last that it looks for
        assert command.environment.get("NIM_MODEL_NAME", "nano") != "nano", done.stderr
        assert "found none" in done.stderr or NO_DYNAMO in done.stderr, done.stderr
    assert "is not a setting" not in done.stderr


def works_for_dynamo(command: Command, mounted: Path) -> None:
    done = run(command, mounted)
    assert done.returncode == 1
    assert "found none" in done.stderr or NO_DYNAMO in done.stderr, done.stderr


def downloads(command: Command, mounted: Path) -> None:
    done = run(command, mounted, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"{command.environment['NIM_MODEL_NAME']}: " in done.stdout
    assert " files to fetch" in done.stdout


def probes(command: Command, mounted: Path) -> None:
    """The port of the pod is fixed, and here a free one."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    folder = mounted / "etc/harmonium/tls"
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.load_verify_locations(folder / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    with serving({}, context) as served:
        words = tuple(word.replace("8000", str(served.port)) for word in command.words)
        assert run(command, mounted, words=words).returncode == 0
    with loopback.bound() as free:  # nobody listens
        words = tuple(word.replace("8000", str(free.getsockname()[1])) for word in command.words)
        assert run(command, mounted, words=words).returncode == 1


def hosts(command: Command, mounted: Path, tool: str) -> None:
    """Ready, the probe finds its socket."""
    from parts.sandbox.jail import fault
    from parts.sandbox.runners import GUESTS

    if (reason := fault(GUESTS[tool])) is not None:
        pytest.skip(reason)
    folder = f"{mounted}{SOCKETS}"
    words = [word.replace(SOCKETS, folder) for word in command.words]
    process = subprocess.Popen(
        words, env={"PATH": f"{BIN}:{os.environ['PATH']}"}, cwd=ROOT, stdout=subprocess.PIPE,
        text=True, preexec_fn=command.limit,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert "is ready" in process.stdout.readline()
        assert run(command, mounted, words=("test", "-S", f"{folder}/{tool}.sock")).returncode == 0
        process.terminate()
    assert process.returncode == 0


def asks_the_service(command: Command, mounted: Path) -> None:
    """`helm test`, against a service that says what it was asked."""
    asked: list[str] = []
    with service(asked) as url:
        environment = {**command.environment, "HARMONIUM_URL": url}
        done = run(Command(command.words, environment, command.memory), mounted)
    assert done.returncode == 0, done.stderr
    assert asked[0] == "/v1/health/ready"
    is_known = {"HARMONIUM_KEY", "HARMONIUM_OPEN"} & environment.keys()
    assert ("/v1/chat/completions" in asked) is bool(is_known)


@contextmanager
def service(asked: list[str]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.dumps({"data": [{"id": "nano"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = loopback.HttpServer((loopback.ADDRESS, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://{loopback.IN_URL}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# Of each release with a prefetch Job: its values, and what the Job would fetch.
PREFETCHED = {
    "a model for GPUs": (["model=gpt-oss-120b", "gpus=1"], "gpt-oss-120b: 22 files to fetch"),
    "the small model for GPUs": (["model=gpt-oss-20b", "gpus=2"], "gpt-oss-20b: 10 files"),
    "a goal": (
        ["model=gpt-oss-20b", "gpus=1", "environment.NIM_PROFILE_GOAL=latency"],
        "gpt-oss-20b: 10 files",
    ),
    "a goal on GPUs that are named": (
        [
            *("model=gpt-oss-20b", "gpus=1", "environment.NIM_PROFILE_GOAL=latency"),
            "prefetch.hardware=rtx4090",
        ],
        "gpt-oss-20b: 1 file",
    ),
    "tags": (
        ["model=gpt-oss-20b", "gpus=1", "environment.NIM_TAGS_SELECTOR=engine=llama_cpp"],
        "gpt-oss-20b: 1 file",
    ),
    "pods without GPUs": (["model=gpt-oss-20b"], "gpt-oss-20b: 1 file"),
}


@pytest.mark.parametrize("case", PREFETCHED)
@pytest.mark.parametrize("helm", ["4.2.3"], indirect=True)
def test_the_job_downloads_what_the_pods_will_serve(
    template: Callable[..., str], tmp_path: Path, case: str
) -> None:
    values, told = PREFETCHED[case]
    done = run(job(template, values), tmp_path, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert told in done.stdout


@pytest.mark.parametrize("helm", ["4.2.3"], indirect=True)
def test_the_job_downloads_a_checkpoint_of_the_users(
    template: Callable[..., str], tmp_path: Path
) -> None:
    """Whole, and as rendered to the last word."""
    with serving({"m/own/config.json": b"{}", "m/own/model.safetensors": shard("a")}) as served:
        command = job(template, [f"environment.NIM_MODEL_PATH={served.url}/m/own", "gpus=1"])
        done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "own is complete in" in done.stdout


def job(template: Callable[..., str], values: list[str]) -> Command:
    arguments = [word for pair in (*CLAIM, *values) for word in ("--set", pair)]
    items = [item for item in yaml.safe_load_all(template(*arguments)) if item]
    (found,) = [item for item in items if item["kind"] == "Job"]
    maps = [item for item in items if item["kind"] == "ConfigMap"]
    (command,) = commands_of([found, *maps])
    assert command.words[:2] == ("harmonium", "download-to-cache")
    return command


def test_a_job_of_another_template_has_another_name(objects: Callable[..., dict[str, Any]]) -> None:
    """Its template can never be changed."""
    base = [*CLAIM, "model=gpt-oss-20b", "gpus=1"]
    changes = (
        *("drainSeconds=60", "tolerations[0].operator=Exists", "nodeSelector.a=b", "model=nano"),
        *("extraEnv[0].name=A,extraEnv[0].value=b", "serviceAccount.name=x", "image.tag=x"),
        *("imagePullSecrets[0].name=x", "auth.keysSecret=x", "prefetch.hardware=h100"),
        *("shmSize=1Gi", "podSecurityContext.runAsUser=5", "environment.NIM_LOG_LEVEL=DEBUG"),
    )
    names = [objects(*base, change)["Job"]["metadata"]["name"] for change in changes]
    names.append(objects(*base)["Job"]["metadata"]["name"])
    assert len(set(names)) == len(changes) + 1
    assert objects(*base, "service.port=80")["Job"]["metadata"]["name"] == names[-1]
