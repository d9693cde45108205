"""Code generators write clients from /openapi.json that compile and complete a chat (make sdks)."""

from __future__ import annotations

import os
import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

pytestmark = pytest.mark.sdks

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PYTHON = ROOT / ".cache" / "clients" / "sdks" / "bin"
NODE = ROOT / ".cache" / "clients" / "generated"
GENERATOR = "openapi_generator_cli/openapi-generator.jar"
MIME = Path("/usr/share/java/httpmime.jar")  # forms; the other libraries are in the generator's
ANSWERS = ["Hello! I am a scripted model."] * 3  # by chat, responses and messages


@pytest.fixture(scope="module")
def document(server: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's /openapi.json."""
    request = urllib.request.Request(
        f"{server.url}/openapi.json", headers={"Authorization": f"Bearer {server.key}"}
    )
    path = tmp_path_factory.mktemp("document") / "openapi.json"
    with urllib.request.urlopen(request) as response:
        path.write_bytes(response.read())
    return path


@pytest.fixture(scope="module")
def jar() -> Path:
    """openapi-generator, and in it the libraries that its Java clients use."""
    (found,) = (PYTHON.parent / "lib").glob(f"python*/site-packages/{GENERATOR}")
    return found


def made(*command: object, path: Path | None = None) -> None:
    """Run a tool, which finds others on the `path`; it must not fail."""
    ended = subprocess.run(
        [str(part) for part in command],
        env=os.environ | {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def answers(ended: Any) -> list[str]:
    """The lines that a program printed, one for each answer."""
    assert ended.status == 0, ended.output + ended.log
    lines: list[str] = ended.output.splitlines()
    return lines


def test_openapi_python_client(document: Path, run: Run, tmp_path: Path) -> None:
    written = tmp_path / "written"
    config = tmp_path / "config.yaml"  # it knows no JSON Lines
    kinds = "application/jsonl: text/plain, application/x-jsonl: text/plain"
    config.write_text(f"content_type_overrides: {{{kinds}}}\n")
    generate = (PYTHON / "openapi-python-client", "generate", "--fail-on-warning")
    made(*generate, "--config", config, "--path", document, "--output-path", written, path=PYTHON)
    shutil.copy(HERE / "use_openapi_python_client.py", written)
    ended = run(str(PYTHON / "python"), "use_openapi_python_client.py", folder=written)
    assert answers(ended) == ANSWERS


def test_openapi_generator_python(document: Path, jar: Path, run: Run, tmp_path: Path) -> None:
    made("java", "-jar", jar, "generate", "-i", document, "-g", "python", "-o", tmp_path)
    shutil.copy(HERE / "use_openapi_generator.py", tmp_path)
    ended = run(str(PYTHON / "python"), "use_openapi_generator.py", folder=tmp_path)
    assert answers(ended) == ANSWERS


def test_openapi_generator_java(document: Path, jar: Path, run: Run, tmp_path: Path) -> None:
    made(
        *("java", "-jar", jar, "generate", "-i", document, "-g", "java", "-o", tmp_path),
        *("--library", "native"),
        *("--additional-properties", "openApiNullable=false,generateAliasAsModel=true"),
    )
    sources = [*(tmp_path / "src" / "main").rglob("*.java"), *(HERE / "java").rglob("*.java")]
    classes = tmp_path / "classes"
    libraries = f"{jar}:{MIME}"
    made("javac", "-nowarn", "-d", classes, "-cp", libraries, *sources)
    ended = run("java", "-cp", f"{classes}:{libraries}", "UseOpenapiGenerator")
    assert answers(ended) == ANSWERS


def test_openapi_typescript(document: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(NODE / "node_modules")
    for name in ("package.json", "tsconfig.json", "use_openapi_typescript.ts"):
        shutil.copy(HERE / name, tmp_path)
    tools = NODE / "node_modules" / ".bin"
    made(tools / "openapi-typescript", document, "-o", tmp_path / "api.d.ts")
    made(tools / "tsc", "--project", tmp_path)
    assert answers(run("node", "use_openapi_typescript.js", folder=tmp_path)) == ANSWERS
