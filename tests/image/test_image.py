"""The built image as a cluster runs it: uid 10001, read-only root, no capabilities."""

import json
import os
import re
import socket
import subprocess
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.image

ROOT = Path(__file__).parents[2]
IMAGE = os.environ.get("IMAGE", "localhost/harmonium:latest")
FLAVOUR = os.environ.get("FLAVOUR", "cpu")
READY_LIMIT_S = 120
STOP_LIMIT_S = 60
CONFINED = (
    "--network=host",
    "--read-only",
    "--tmpfs=/tmp",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
)
KEY = "hmk-of-this-test"
HEADERS = {"Authorization": f"Bearer {KEY}"}
QUESTION = {"messages": [{"role": "user", "content": "Hello! Who are you?"}], "max_tokens": 200}


def podman(*arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "packaging" / "podman", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def checked(*arguments: str) -> str:
    result = podman(*arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    port: int
    ready_s: float

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        return podman("exec", self.name, *command)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


def wait_until_ready(name: str, port: int) -> float:
    """Seconds until readiness says 200; fails with the log when the container ends first."""
    start = time.monotonic()
    while (elapsed_s := time.monotonic() - start) < READY_LIMIT_S:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/v1/health/ready", timeout=2).is_success:
                return elapsed_s
        except httpx.TransportError:
            pass
        if checked("inspect", "--format", "{{.State.Running}}", name) != "true":
            break
        time.sleep(0.1)
    log = podman("logs", name)
    pytest.fail(f"not ready after {elapsed_s:.0f} s\n{log.stdout}{log.stderr}")


@contextmanager
def run(*options: str, keys: str = KEY) -> Iterator[Container]:
    port = free_port()
    name = f"harmonium-test-{port}"
    environment = (
        f"--env=NIM_SERVER_PORT={port}",
        f"--env=NIM_API_KEYS={keys}",
        "--env=NIM_MODEL_NAME=nano",
    )
    checked("run", "--detach", "--name", name, *CONFINED, *environment, *options, IMAGE)
    try:
        yield Container(name, port, wait_until_ready(name, port))
    finally:
        podman("rm", "--force", "--time=5", "--volumes", name)


@pytest.fixture(scope="module")
def container() -> Iterator[Container]:
    with run() as container:
        yield container


def ask(container: Container) -> str:
    model = httpx.get(container.url("/v1/models"), headers=HEADERS, timeout=30).json()["data"][0][
        "id"
    ]
    reply = httpx.post(
        container.url("/v1/chat/completions"),
        json=QUESTION | {"model": model},
        headers=HEADERS,
        timeout=60,
    )
    assert reply.status_code == 200, reply.text
    content: str = reply.json()["choices"][0]["message"]["content"]
    return content


def test_it_chats(container: Container, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(container)
    with capsys.disabled():
        print(f"\n{IMAGE}: ready {container.ready_s:.1f} s after podman run; says: {answer!r}")
    assert answer.strip()


def test_it_streams(container: Container) -> None:
    model = httpx.get(container.url("/v1/models"), headers=HEADERS, timeout=30).json()["data"][0][
        "id"
    ]
    body = QUESTION | {"model": model, "stream": True}
    with httpx.stream(
        "POST", container.url("/v1/chat/completions"), json=body, headers=HEADERS, timeout=60
    ) as reply:
        events = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert events[-1] == "[DONE]"
    deltas = [choice["delta"] for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas).strip()


def test_it_holds_an_answer_to_a_schema(container: Container) -> None:
    """Grammars work in the image, which has no triton."""
    model = httpx.get(container.url("/v1/models"), headers=HEADERS, timeout=30).json()["data"][0][
        "id"
    ]
    schema = {
        "type": "object",
        "properties": {"friendly": {"type": "boolean"}},
        "required": ["friendly"],
        "additionalProperties": False,
    }
    answer_format = {"name": "mood", "schema": schema, "strict": True}
    reply = httpx.post(
        container.url("/v1/chat/completions"),
        json=QUESTION
        | {
            "model": model,
            "response_format": {"type": "json_schema", "json_schema": answer_format},
            "thinking_token_budget": 16,
        },
        headers=HEADERS,
        timeout=60,
    )
    assert reply.status_code == 200, reply.text
    answer = json.loads(reply.json()["choices"][0]["message"]["content"])
    assert isinstance(answer["friendly"], bool)


def test_without_keys_it_makes_one_and_keeps_it_out_of_its_log() -> None:
    with run(keys="") as container:
        assert httpx.get(container.url("/v1/models"), timeout=30).status_code == 401
        log = podman("logs", container.name)
        assert "hmk_" not in log.stderr + log.stdout
        [path] = re.findall(r"/opt/nim/\.cache/api-key-\d+", log.stderr + log.stdout)
        key = container.execute("cat", path).stdout.strip()
        models = httpx.get(container.url("/v1/models"), headers={"X-API-Key": key}, timeout=30)
        assert models.status_code == 200


def test_it_runs_as_10001_without_a_writable_root(container: Container) -> None:
    assert container.execute("id", "-u").stdout.strip() == "10001"
    for folder in ("/opt/harmonium", "/opt/nim", "/etc"):
        assert container.execute("touch", f"{folder}/probe").returncode != 0
    assert container.execute("touch", "/opt/nim/.cache/probe").returncode == 0


def test_the_health_check_follows_readiness(container: Container) -> None:
    shell, command = json.loads(checked("inspect", "--format", "{{json .HealthCheck.Test}}", IMAGE))
    assert shell == "CMD-SHELL"
    assert container.execute("sh", "-c", command).returncode == 0
    nobody_listens = f"export NIM_SERVER_PORT={free_port()}; {command}"
    assert container.execute("sh", "-c", nobody_listens).returncode != 0


def test_any_uid_can_run_it() -> None:
    with run("--user=54321") as container:
        assert container.execute("id", "-u").stdout.strip() == "54321"
        assert ask(container).strip()


def test_a_stop_drains_and_exits_0() -> None:
    with run() as container:
        checked("stop", f"--time={STOP_LIMIT_S}", container.name)
        assert checked("inspect", "--format", "{{.State.ExitCode}}", container.name) == "0"
        log = podman("logs", container.name)
    assert "Traceback" not in log.stdout + log.stderr


@pytest.mark.parametrize("command", [["harmonium", "profiles"], ["list-model-profiles"]])
def test_the_profiles_are_listed_by_either_name(command: list[str]) -> None:
    entrypoint, *arguments = command
    listing = checked("run", "--rm", *CONFINED, f"--entrypoint={entrypoint}", IMAGE, *arguments)
    assert "nano" in listing


def test_the_manifest_is_where_nims_operator_reads_it() -> None:
    path = "/opt/nim/etc/default/model_manifest.yaml"
    manifest = checked("run", "--rm", *CONFINED, "--entrypoint=cat", IMAGE, path)
    assert manifest.startswith("schema_version: 2.0.0\n")


def test_no_other_distribution_provides_our_packages() -> None:
    code = "import importlib.metadata as m, json;print(json.dumps(m.packages_distributions()))"
    packages = json.loads(
        checked("run", "--rm", *CONFINED, "--entrypoint=python", IMAGE, "-c", code)
    )
    for name in ("service", "profiles", "engines", "auth"):
        assert packages[name] == ["harmonium"]


def test_the_cuda_flavour_brings_what_gpus_need() -> None:
    """torch with CUDA, Triton with its compiler, llama.cpp; the other flavour none of them."""
    engines = json.loads(
        checked("run", "--rm", *CONFINED, "--entrypoint=python", IMAGE, "-m", "engines.factory")
    )
    has_cuda = FLAVOUR == "cuda"
    assert ("native" not in engines["cpu_only"]) == has_cuda
    assert (engines["installed"]["llama_cpp"] is None) == has_cuda
    if has_cuda:  # it loads where there is no driver
        checked("run", "--rm", *CONFINED, "--entrypoint=python", IMAGE, "-c", "import llama_cpp")


def test_the_labels_name_version_and_revision() -> None:
    labels = json.loads(checked("inspect", "--format", "{{json .Config.Labels}}", IMAGE))
    assert labels["io.harmonium.flavour"] == FLAVOUR
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert labels["org.opencontainers.image.version"] == project["version"]
    assert len(labels["org.opencontainers.image.revision"].removesuffix("-dirty")) == 40


@pytest.mark.parametrize("name", ["LICENSE", "NOTICE"])
def test_the_licence_is_in_it(name: str) -> None:
    text = checked("run", "--rm", *CONFINED, "--entrypoint=cat", IMAGE, f"/licenses/{name}")
    assert text == (ROOT / name).read_text(encoding="utf-8").strip()
