"""uv or pip, and what a machine has, for the programs of this folder.

Standard library only, and no syntax newer than Python 3.6.
"""

import ast
import os
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
DEVNULL = subprocess.DEVNULL
# pip's settings that say where packages come from; uv has the same flags but does not read them.
_NUM_SHOWN = 30  # lines of a log after a failure
SOURCES = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host")


class CannotInstall(Exception):
    """Says why, and what to do."""


def say(text: str) -> None:
    print(text, flush=True)


def starts(program: str) -> bool:
    """Whether a program is there and works; pyenv has shims that are and do not."""
    path = shutil.which(program)
    return path is not None and succeeds([path, "--version"])


def succeeds(command: "list[str]") -> bool:
    try:
        return subprocess.run(command, stdout=DEVNULL, stderr=DEVNULL, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def can_be_made(folder: Path) -> bool:
    """Whether this user can write a folder, which need not be there yet."""
    while not os.path.lexists(str(folder)) and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(str(folder), os.W_OK | os.X_OK)


def found_uv() -> "str | None":
    """The path of uv, if it is there and works; told to keep nothing where it cannot."""
    if not starts("uv"):
        return None
    asked = subprocess.run(["uv", "cache", "dir"], stdout=subprocess.PIPE, stderr=DEVNULL)
    cache = asked.stdout.decode().strip()
    if asked.returncode == 0 and cache and not can_be_made(Path(cache)):
        say(f"uv's cache {cache} cannot be written, so nothing that is fetched is kept for another")
        say("installation. UV_CACHE_DIR names another folder.")
        os.environ["UV_NO_CACHE"] = "1"
    return shutil.which("uv")


def nvidia_gpu() -> str:
    """The name of the first NVIDIA GPU whose driver works here, or nothing."""
    return next(iter(queried("name")), "")


def queried(fields: str) -> "list[str]":
    """Fields of each NVIDIA GPU, as nvidia-smi tells them; nothing where none answers."""
    program = shutil.which("nvidia-smi") or "/usr/lib/wsl/lib/nvidia-smi"
    command = [program, f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        asked = subprocess.run(command, stdout=subprocess.PIPE, stderr=DEVNULL, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return asked.stdout.decode().splitlines() if asked.returncode == 0 else []


class Installer:
    """uv, or pip where there is no uv; what either prints is kept in a log."""

    def __init__(self, python: Path, uv: "str | None", log: "Path | None" = None) -> None:
        self.name = "uv" if uv else "pip"
        self._log = log or python.parent.parent / "install.log"
        self.settings = pip_settings(python)
        self._environment = dict(os.environ)
        if uv is None:
            self._base = [str(python), "-m", "pip", "--disable-pip-version-check", "install"]
            self._command = self._base
            return
        self._base = [uv, "pip", "install", "--python", str(python)]
        # pip's way to choose among indexes: the best version wins, wherever it lies
        self._command = [*self._base, "--index-strategy", "unsafe-best-match"]
        if "cert" in self.settings:
            self._environment.setdefault("SSL_CERT_FILE", self.settings["cert"][0])

    def install(
        self,
        *arguments: str,
        index: "str | None" = None,
        environment: "dict[str, str] | None" = None,
    ) -> None:
        """Install, with another main index or more variables where they are given.

        Raises CannotInstall when it fails, with the end of the log.
        """
        settings = self.settings if self.name == "uv" else {}  # pip knows them
        if index:
            settings = {**settings, "index-url": [index]}
        sources = [f for name in SOURCES for f in flags(name, settings.get(name, []))]
        command = [*self._command, *sources, *arguments]
        variables = {**self._environment, **(environment or {})}
        process = subprocess.Popen(
            command,
            bufsize=0,  # else select() would not know of lines that were read ahead
            cwd=str(ROOT),
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        try:
            with self._log.open("ab") as log, process.stdout:
                told = follow(process.stdout, log)
        finally:
            process.kill()  # interrupted: pip would go on
            process.wait()
        if process.returncode:
            end = "\n".join(told[-_NUM_SHOWN:])
            raise CannotInstall(f"{self.name} failed. {self._log} has all it said; its end:\n{end}")

    def uninstall(self, *names: str) -> None:
        """Remove packages; what is not there is no error."""
        command = [part if part != "install" else "uninstall" for part in self._base]
        command += ["--yes"] if self.name == "pip" else []
        subprocess.run([*command, *names], env=self._environment, stdout=DEVNULL, stderr=DEVNULL)


def follow(output: "IO[bytes]", log: "IO[bytes]") -> "list[str]":
    """Write what a tool prints to the log, and what it does now on one line of a terminal."""
    told, doing, began = [], "", time.time()
    is_shown = sys.stdout.isatty()
    while True:
        if is_shown:
            width = shutil.get_terminal_size().columns - 1
            shown = f"{time.time() - began:4.0f} s  {doing}"[:width]
            print(f"\r{shown:<{width}}", end="", flush=True)
            if not select.select([output], [], [], 1.0)[0]:
                continue
        line = output.readline()
        if not line:
            break
        log.write(line)
        told.append(line.decode("utf-8", "replace").rstrip())
        if re.match(r"\s*[A-Z][a-z]+ing ", told[-1]):  # Collecting, Downloading, Building
            doing = told[-1].strip()
    if is_shown:
        print("\r" + " " * width + "\r", end="", flush=True)
    return told


def pip_settings(python: Path) -> "dict[str, list[str]]":
    """What pip is told, in files or the environment, about where packages come from."""
    for program in (str(python), sys.executable):  # an environment that uv made has no pip
        command = [program, "-m", "pip", "config", "list"]
        asked = subprocess.run(command, stdout=subprocess.PIPE, stderr=DEVNULL)
        if asked.returncode == 0:
            break
    strength = ("global", "install", ":env:")  # the last one wins
    found = {}
    for line in asked.stdout.decode().splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in strength and name in (*SOURCES, "cert"):
            found[strength.index(section), name] = str(ast.literal_eval(value)).split()
    return {name: values for (_, name), values in sorted(found.items())}


def flags(name: str, values: "list[str]") -> "list[str]":
    """A setting of pip as flags of uv."""
    if name == "no-index":
        return ["--no-index"] if values and values[0].lower() in ("1", "true", "yes", "on") else []
    flag = "--allow-insecure-host" if name == "trusted-host" else f"--{name}"
    return [part for value in values for part in (flag, value)]
