"""Compile the kernels of gpt-oss for GPUs that are not here, and keep them as pre-built parts.

    python -m engines.native.backends.cuda.offline --architectures 90 --into FOLDER

Without --into they go where every start looks for them, into the package itself: a wheel that is
built then carries them. --report writes what each kernel takes, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import triton

from engines.native.artefact.store import NotKept
from engines.native.backends.cuda.artefact.parts import PREBUILT
from engines.native.backends.cuda.card import KNOWN
from engines.native.backends.cuda.offline.building import MODELS, compile_model, keep


def main() -> None:
    arguments = _parsed()
    report = []
    for architecture in arguments.architectures:
        # What two models share is compiled once; the second's part has the first's kernels, too.
        with tempfile.TemporaryDirectory(prefix="harmonium-offline-") as folder:
            for name in arguments.models:
                started_s = time.monotonic()
                used = compile_model(architecture, name, Path(folder), arguments.jobs)
                if arguments.report is None:
                    keep(architecture, name, Path(folder), arguments.into)
                report += [{"architecture": architecture, "model": name, **each} for each in used]
                taken_s = time.monotonic() - started_s
                print(
                    f"sm_{architecture} {name}: {len(used)} kernels in {taken_s:.0f} s", flush=True
                )
    if arguments.report is not None:
        arguments.report.write_text(json.dumps(report, indent=1) + "\n")


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engines.native.backends.cuda.offline")
    parser.add_argument("--architectures", type=int, nargs="+", choices=sorted(KNOWN), default=[90])
    parser.add_argument("--models", nargs="+", default=MODELS, help="20b, 120b, or a folder")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--into", type=Path, default=PREBUILT, help="a store of pre-built parts")
    parser.add_argument("--report", type=Path, help="write what each kernel takes; keep nothing")
    return parser.parse_args()


if __name__ == "__main__":
    if triton.knobs.runtime.interpret:
        raise SystemExit("TRITON_INTERPRET is set: nothing would be compiled")
    try:
        main()
    except NotKept as error:
        raise SystemExit(str(error)) from error
