"""Start to ready of the native engine on this machine's GPU: with nothing, and with the artefact.

    python -m tools.benchmarks.gpu_start [--model 20b|120b] [--folder DIR] [--json FILE]

Writes a random checkpoint of the true shape in the published format, then starts an engine in a
fresh process as often as told: the first finds nothing, later ones what it left. Each prints
where its seconds go; the checkpoint and the artefact are in the page cache by then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any


def start_once(model: str, folder: Path, store: str, max_num_seqs: int) -> None:
    """In a process of its own: import, start, one answer; a JSON line of seconds."""
    began_s = time.perf_counter()
    parts: dict[str, float] = {}

    class Told(logging.Handler):
        """What the engine tells about its own start."""

        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if " in " in text and text.endswith(" s"):
                parts[text.split(" in ")[0]] = float(text.split(" in ")[1].removesuffix(" s"))

    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    logging.getLogger().addHandler(Told())
    import torch

    torch.cuda.init()
    imported_s = time.perf_counter()
    from engines.factory import create
    from tools.benchmarks.gpu_disk import greedy_twice, spec_for

    limits = {
        "max_model_len": 131072, "max_num_seqs": max_num_seqs, "max_num_batched_tokens": 2048,
    }  # fmt: skip
    spec = replace(spec_for(folder, torch.device("cuda"), limits), artefact_dir=store or None)

    async def run() -> dict[str, Any]:
        engine = create(spec)
        await engine.start()
        ready_s = time.perf_counter()
        answer = await greedy_twice(engine)
        await engine.stop()
        return {
            "ready_s": round(ready_s - began_s, 2),
            "import_torch_s": round(imported_s - began_s, 2),
            "told_s": parts,
            "answer": answer,
        }

    print(json.dumps({"gpu": torch.cuda.get_device_name(), **asyncio.run(run())}))


def started(arguments: argparse.Namespace, folder: Path, store: str, cache: Path) -> dict[str, Any]:
    """Start in a fresh process whose Triton knows nothing but what the store has."""
    command = [
        sys.executable, "-m", "tools.benchmarks.gpu_start", "--once", "--store", store,
        "--model", arguments.model, "--folder", str(folder),
        "--max-num-seqs", str(arguments.max_num_seqs),
    ]  # fmt: skip
    import os

    start = time.perf_counter()
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False,
        env={**os.environ, "TRITON_CACHE_DIR": str(cache)},
    )  # fmt: skip
    if done.returncode:
        return {"error": f"exit code {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**found, "process_s": round(time.perf_counter() - start, 2)}


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    import torch

    from engines.native.backends.cuda.offline.published import gpt_oss
    from tools.benchmarks.gpu_disk import write_vocabulary
    from tools.benchmarks.published import write_published

    model, store = gpt_oss(arguments.model), str(folder / "store")
    num_bytes = write_published(folder / "model", model, torch.device("cuda"))
    write_vocabulary(folder / "model" / "vocabulary.tiktoken", model.vocab_size)
    torch.cuda.empty_cache()
    found: dict[str, Any] = {"gb": round(num_bytes / 1e9, 2)}
    for name, where in (("first", store), ("second", store), ("third", store), ("no_store", "")):
        cache = folder / f"triton-{'shared' if not where else name}"
        found[name] = started(arguments, folder / "model", where, cache)
        print(f"{name}: {json.dumps(found[name])}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["20b", "120b"], default="20b")
    parser.add_argument("--folder", type=Path, help="where checkpoint and store go")
    parser.add_argument("--max-num-seqs", type=int, default=128)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        start_once(arguments.model, arguments.folder, arguments.store, arguments.max_num_seqs)
        return
    folder = Path(tempfile.mkdtemp(prefix="harmonium-start-", dir=arguments.folder))
    try:
        found = measure(arguments, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
