"""Run functions of a program one after the other: `run_checks.py PROGRAM NAME...`.

Writes one JSON line for each: {"check": NAME, "error": null or the traceback}.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import runpy
import sys
import traceback

program = runpy.run_path(sys.argv[1])
with asyncio.Runner() as runner:
    for name in sys.argv[2:]:
        error = None
        try:
            result = program[name]()
            if inspect.iscoroutine(result):
                runner.run(result)
        except Exception:
            error = traceback.format_exc()
        print(json.dumps({"check": name, "error": error}), flush=True)
