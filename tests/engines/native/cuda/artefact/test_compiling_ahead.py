"""Kernels compiled side by side: once for all engines of a host, and later where that fails."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Final

import pytest

from engines import start_steps
from engines.native.artefact.store import Part, Store
from engines.native.backends.cuda.artefact import compiled_kernels
from engines.native.backends.cuda.artefact.ahead import Tell, compile_ahead, compile_in_processes
from engines.native.backends.cuda.card import KNOWN
from tests.engines.native.cuda.artefact.artefact_case import MODEL
from tools.benchmarks.published import write_published

ROOT: Final = Path(__file__).parents[5]
PART: Final = Part("kernels-test", {"sources": "1"})
KERNELS: Final = [f"kernel-{n}.cubin" for n in range(5)]
ENGINES: Final = 4


class Compiler:
    """Counts what it compiles."""

    def __init__(self) -> None:
        self.compiled: Counter[str] = Counter()

    def __call__(self, folder: Path, tell: Tell) -> None:
        for number, name in enumerate(KERNELS):
            self.compiled[name] += 1
            (folder / name).write_text("machine code")
            tell(f"{number + 1} of {len(KERNELS)}")


def kernels_in(store: Store) -> list[str]:
    with store.shared(PART) as slot:
        assert slot.why_not() is None
        [archive] = slot.found().checksums
        command = ["tar", "tf", str(slot.folder / archive)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_engines_of_one_host_compile_each_kernel_once(tmp_path: Path) -> None:
    compiler = Compiler()
    stores = [Store(tmp_path) for _ in range(ENGINES)]  # each with a lock of its own
    waits = [compile_ahead(each, PART, Store(tmp_path / "no"), 8, compiler) for each in stores]
    for wait in waits:
        wait()
    assert compiler.compiled == Counter(KERNELS)
    assert kernels_in(stores[0]) == KERNELS
    compile_ahead(stores[0], PART, Store(tmp_path / "no"), 8, compiler)()
    assert compiler.compiled == Counter(KERNELS)


@pytest.mark.parametrize("reason", ["prebuilt", "few cores", "no store"])
def test_nothing_is_compiled_ahead_where_that_gains_nothing(tmp_path: Path, reason: str) -> None:
    compiler, store = Compiler(), Store(tmp_path / "own")
    compile_ahead(Store(tmp_path / "wheel"), PART, Store(tmp_path / "no"), 8, compiler)()
    prebuilt = Store(tmp_path / ("wheel" if reason == "prebuilt" else "no"))
    num_cores = 2 if reason == "few cores" else 8
    compile_ahead(None if reason == "no store" else store, PART, prebuilt, num_cores, compiler)()
    assert compiler.compiled == Counter(KERNELS)
    assert store.slot(PART).why_not() == "is not there"


def test_a_compiler_that_fails_leaves_the_kernels_to_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(folder: Path, tell: Tell) -> None:
        raise OSError("the compiling process ended with -9")

    store = Store(tmp_path)
    compile_ahead(store, PART, Store(tmp_path / "no"), 8, broken)()
    assert "one after the other: the compiling process ended with -9" in caplog.text
    with compiled_kernels.kept(store, PART, Store(tmp_path / "no")):
        pass  # nobody holds the lock


@pytest.mark.heavy
def test_a_killed_engine_leaves_no_lock(tmp_path: Path) -> None:
    script = f"""if True:
        import time
        from pathlib import Path
        from engines.native.artefact.store import Store
        from engines.native.backends.cuda.artefact.ahead import compile_ahead
        from tests.engines.native.cuda.artefact.test_compiling_ahead import PART

        def compile_into(folder, tell):
            print("begun", flush=True)
            time.sleep(3600)

        compile_ahead(Store(Path({str(tmp_path)!r})), PART, Store(Path("no")), 8, compile_into)()
    """
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT
    ) as engine:
        assert engine.stdout is not None
        assert engine.stdout.readline() == b"begun\n"
        engine.kill()
    compiler = Compiler()
    compile_ahead(Store(tmp_path), PART, Store(tmp_path / "no"), 8, compiler)()
    assert kernels_in(Store(tmp_path)) == KERNELS


@pytest.mark.heavy
def test_a_process_that_cannot_compile_is_told(tmp_path: Path) -> None:
    compile_into = compile_in_processes({"card": {}})  # not what it needs
    with pytest.raises(OSError, match="the compiling process ended with"):
        compile_into(tmp_path, lambda _: None)


@pytest.mark.slow
def test_a_start_finds_what_was_compiled_side_by_side(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the keys that the launches look for."""
    import torch

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    caplog.set_level(logging.INFO)
    write_published(tmp_path / "model", MODEL, torch.device("cpu"))
    sizes = {
        "max_rows": 1, "max_tokens": 64, "max_drafts": 0, "block_size": 64,
        "is_batch_invariant": False,
    }  # fmt: skip
    wanted = {
        "card": asdict(KNOWN[90]), "model_dir": str(tmp_path / "model"), "is_packed": True,
        "kv_dtype": None, "sizes": sizes,
    }  # fmt: skip
    told: list[str] = []
    (tmp_path / "cache").mkdir()
    compile_in_processes(wanted)(tmp_path / "cache", told.append)
    number, _, total = told[-1].partition(" of ")
    assert number == total == str(len(told))
    script = f"""if True:
        import json, sys
        from pathlib import Path
        from triton.runtime.cache import FileCacheManager
        from engines.native.backends.cuda.artefact import compiled_kernels
        from engines.native.backends.cuda.card import KNOWN
        from engines.native.backends.cuda.choices.of_card import CardChoices
        from engines.native.backends.cuda.offline.compiling import compiled, compiling_for
        from engines.native.backends.cuda.offline.launches import Wanted, launches_of
        from engines.native.config import ModelConfig

        model = ModelConfig.from_dir(Path({str(tmp_path / "model")!r}))
        with compiled_kernels.cache_at(Path({str(tmp_path / "cache")!r})), compiling_for(90):
            sizes = Wanted(**json.loads({json.dumps(json.dumps(sizes))}))
            launches = launches_of(model, CardChoices(KNOWN[90]), wanted=sizes)
            FileCacheManager.put = None  # it would fail to keep what it had to compile
            for launch in launches:
                compiled(launch)
        print(len(launches))
    """
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == total


def test_a_start_says_how_long_each_phase_took() -> None:
    start_steps.end()
    for step in ("loading weights, layer 1", "compiling GPU kernels, 3 of 9",
                 "loading weights, layer 2", "capturing CUDA graphs"):  # fmt: skip
        start_steps.begin(step)
    phases = [each.rpartition(" ")[0].rpartition(" ")[0] for each in start_steps.end().split(", ")]
    assert phases == ["loading weights", "compiling GPU kernels", "capturing CUDA graphs"]
    assert start_steps.current() == ""
