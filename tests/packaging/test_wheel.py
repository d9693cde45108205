"""A wheel is enough: it serves without the checkout that it was built from."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

import pytest

from tests import plain
from tests.packaging.program import ROOT, install_helpers

WITHIN_S = 180  # generous: the machine may be busy
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheel` builds."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    done = subprocess.run([*pip, str(folder), str(ROOT)], capture_output=True, text=True)
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("the package index does not answer, and the wheel's builder comes from there")
    assert done.returncode == 0, done.stderr
    [wheel] = folder.glob("harmonium-*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with the wheel, and with our packages but for the checkout: no .pth of theirs counts."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = folder.glob("lib/python3*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    [line] = re.findall(r"or: (pip install dist/\S+)", README)
    *pip, _ = shlex.split(line)
    pip = [sys.executable, "-m", *pip[:1], f"--python={folder}/bin/python", *pip[1:], "--no-deps"]
    subprocess.run([*pip, "--quiet", str(wheel)], check=True)
    return folder


def test_a_wheel_serves_the_page_and_an_answer(environment: Path, tmp_path: Path) -> None:
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("NIM_", "PYTHON"))}
    variables["NIM_CACHE_PATH"] = str(tmp_path / "cache")
    check_serving(environment / "bin" / "harmonium", variables, tmp_path)


@pytest.mark.slow
def test_uv_makes_a_tool_of_it_that_a_new_shell_finds(wheel: Path, tmp_path: Path) -> None:
    beside = Path(sys.executable).parent / "uv"
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    home = tmp_path / "home"
    home.mkdir()
    shell = {"HOME": str(home), "PATH": f"{home}/.local/bin:{Path(uv).parent}:/usr/bin:/bin"}
    # Of the size that this machine needs: a plain torch is 2.8 GB of CUDA on any.
    torch = tmp_path / "torch.txt"
    torch.write_text(f"torch=={version('torch')}\n")
    options = ["--python", sys.executable, "--index-strategy", "unsafe-best-match"]
    options += ["--constraint", str(ROOT / "constraints.txt"), "--constraint", str(torch)]
    settings = install_helpers.pip_settings(Path(sys.executable))
    for name in install_helpers.SOURCES:
        options += install_helpers.flags(name, settings.get(name, []))
    certificates = {"SSL_CERT_FILE": settings["cert"][0]} if "cert" in settings else {}
    [line] = re.findall(r"(uv tool install) dist/\S+", README)
    done = subprocess.run(
        ["/bin/sh", "-c", shlex.join([*line.split(), str(wheel), *options])],
        env=shell | certificates,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    if "no version of torch==" in done.stderr:
        pytest.skip(f"no index has torch {version('torch')}")
    assert done.returncode == 0, done.stderr
    helped = subprocess.run(
        ["/bin/sh", "-c", "harmonium --help"],
        env=shell,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "serve" in helped.stdout, helped.stderr
    check_serving(home / ".local" / "bin" / "harmonium", shell, tmp_path)


def check_serving(program: Path, variables: dict[str, str], folder: Path) -> None:
    """Start nano, ask it something, and end it."""
    command = [str(program), "serve", "nano", "--server-port", "0"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=variables, cwd=folder
    )
    assert process.stderr is not None
    try:
        log = ""
        while (found := re.search(r"serving nano on (\S+)", log)) is None:
            line = process.stderr.readline()
            assert line, log
            log += line
        url = found[1]
        body = {"messages": [{"role": "user", "content": "Hello!"}]}
        answer = plain.post(f"{url}/v1/chat/completions", json=body, timeout=WITHIN_S)
        assert answer.json()["choices"][0]["message"]["content"]
        for path in ("/", "/docs", "/openapi.json"):
            assert plain.get(url + path, timeout=WITHIN_S).status_code == 200, path
        process.terminate()
        assert "Stopped." in process.stderr.read()
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_what_runs_is_the_wheels_own(environment: Path, tmp_path: Path) -> None:
    code = "import engines, harmonium, parts; print(harmonium.__file__, *parts.__path__)"
    done = subprocess.run(
        [environment / "bin" / "python", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert all(each.startswith(str(environment)) for each in done.stdout.split())
