"""`harmonium serve` with the scripted engine instead of a checkpoint; run as a program.

Arguments: the engine's options as JSON, then the command line. All else is what a user runs.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

from engines.spec import EngineSpec
from profiles.store import store
from service.__main__ import main
from service.cli import serve
from service.run import startup
from service.run.startup import Launch
from service.settings.settings import Settings


def _run(options: str, *command_line: str) -> int:
    def prepare(settings: Settings) -> Launch:
        """The real choice of a profile, whose files are not looked for."""
        with mock.patch.object(store, "resolve", return_value=Path("/scripted")):
            return replace(
                startup.prepare(settings), spec=EngineSpec("tests.fake", json.loads(options))
            )

    with mock.patch.object(serve, "prepare", prepare):
        return main(command_line)


if __name__ == "__main__":
    sys.exit(_run(*sys.argv[1:]))
