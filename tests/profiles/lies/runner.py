"""Runs `harmonium download-to-cache` for each line of its input, in a fork of its own.

A line is a JSON object of environment variables and arguments; the answer is one of the exit
status, what was written, the peak of memory and the time. A fork has all modules, which takes
seconds to load.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from typing import Any, NoReturn

import huggingface_hub.constants

import profiles.download.hub
import profiles.download.mirror
import profiles.download.ngc
import service.cli.model_files
from profiles.download import fetch
from service.__main__ import main

HUNG_S = 60.0  # far above what is promised, so that a busy machine fails nothing
LOADED = (profiles.download.hub, profiles.download.mirror, profiles.download.ngc)
COMMAND = service.cli.model_files.download_to_cache.name


def run(environment: dict[str, str], arguments: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as output:
        began, pid = time.monotonic(), os.fork()
        if pid == 0:
            _run_here(environment, arguments, output.fileno())
        status, usage = _waited(pid)
        output.seek(0)
        return {
            "status": os.waitstatus_to_exitcode(status),
            "text": output.read().decode("utf-8", "backslashreplace"),
            "peak_mb": usage / 1000,
            "seconds": time.monotonic() - began,
        }


def _waited(pid: int) -> tuple[int, int]:
    began = time.monotonic()
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return status, usage.ru_maxrss
        if time.monotonic() - began > HUNG_S:
            os.kill(pid, signal.SIGKILL)
            began = float("inf")
        time.sleep(0.01)


def _run_here(environment: dict[str, str], arguments: list[str], output: int) -> NoReturn:
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(environment)
    huggingface_hub.constants.ENDPOINT = environment["HF_ENDPOINT"]
    template = environment["HF_ENDPOINT"] + "/{repo_id}/resolve/{revision}/{filename}"
    huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE = template
    fetch._PAUSE_S = 0.0
    os.chdir(environment["HOME"])
    status = 70
    try:
        status = main([str(COMMAND), *arguments])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)
