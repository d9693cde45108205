"""A wheel is enough: it serves without the checkout that it was built from."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests import plain
from tests.packaging.program import ROOT

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
    program = str(environment / "bin" / "harmonium")
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("NIM_", "PYTHON"))}
    variables["NIM_CACHE_PATH"] = str(tmp_path / "cache")
    command = [program, "serve", "nano", "--server-port", "0"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=variables, cwd=tmp_path
    )
    assert process.stderr is not None
    try:
        log = ""
        while (found := re.search(r"serving nano on (\S+)", log)) is None:
            line = process.stderr.readline()
            assert line, log
            log += line
        url = found[1]
        body = {"model": "nano", "messages": [{"role": "user", "content": "Hello!"}]}
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
