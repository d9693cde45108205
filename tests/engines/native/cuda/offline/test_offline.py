"""Every kernel of every profile, compiled for GPUs that are not here: `make kernels-offline`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines.native.backends.cuda.card import KNOWN
from engines.native.backends.cuda.choices.of_card import CardChoices
from engines.native.backends.cuda.offline.launches import Wanted, fp8_launches_of, launches_of
from engines.native.backends.cuda.offline.published import gpt_oss

MOST_REGISTERS = 255
MOST_STACK = 256  # bytes of a thread: what spills of registers


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 89, 90, 100, 120])
def test_every_launch_compiles_within_the_limits(architecture: int, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    subprocess.run(
        [sys.executable, "-m", "engines.native.backends.cuda.offline", "--report", str(report),
         "--architectures", str(architecture)],
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        check=True,
    )  # fmt: skip
    kernels: list[dict[str, Any]] = json.loads(report.read_text())
    assert {kernel["model"] for kernel in kernels} == {"20b", "120b"}
    assert len(kernels) > 200
    most = KNOWN[architecture].shared_bytes
    for kernel in kernels:
        assert kernel["shared_bytes"] <= most, kernel
        assert kernel["registers"] <= MOST_REGISTERS, kernel
        # Hopper's variants are those that were the fastest, some with more of a stack.
        assert architecture == 90 or kernel["stack_bytes"] <= MOST_STACK, kernel
    figures = {name: max(each[name] for each in kernels) for name in
               ("shared_bytes", "registers", "stack_bytes")}  # fmt: skip
    print(f"sm_{architecture}: {len(kernels)} kernels, at most {figures}")


@pytest.mark.slow
def test_a_kernel_has_the_same_key_in_every_process() -> None:
    """Triton's own keys depend on which kernel of a process is launched first."""
    asked = (
        "from pathlib import Path\n"
        "from engines.native.backends.cuda.artefact import compiled_kernels\n"
        "from engines.native.backends.cuda.kernels import experts, experts_grouped as grouped\n"
        "kernels = [experts.gate_up_kernel, experts.down_kernel, grouped.gate_up_grouped_kernel,"
        " grouped.down_grouped_kernel]\n"
        "with compiled_kernels.cache_at(Path('unused')):\n"
        "    print(sorted([kernel.cache_key for kernel in kernels[::{}]]))\n"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", asked.format(order)],
            env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
            check=True, capture_output=True, text=True,
        ).stdout
        for order in (1, -1)
    }  # fmt: skip
    assert len(keys) == 1


def test_every_kernel_of_a_step_is_found_without_a_gpu() -> None:
    launches = launches_of(gpt_oss("20b"), CardChoices(KNOWN[90]))
    names = {launch.name for launch in launches}
    assert {"rows_kernel", "decode_attention_kernel", "gate_up_grouped_kernel"} <= names
    assert {"gate_up_kernel", "route_few_kernel", "draw_kernel", "embed_guesses_kernel"} <= names
    assert any(launch.options.get("M") == 1024 for launch in launches)


def test_kernels_of_a_cache_in_8_bits_are_compiled_too() -> None:
    """Hopper's own kernel of deep chunks reads bf16: the portable one takes its place."""
    launches = fp8_launches_of(gpt_oss("20b"), CardChoices(KNOWN[90]))
    assert {launch.name for launch in launches} == {
        "decode_attention_kernel",
        "prefill_attention_kernel",
        "rotate_write_kernel",
        "row_attention_kernel",
        "write_kv_kernel",
    }


def test_kernels_of_adapters_are_compiled_where_they_are_wanted() -> None:
    """Else a start with adapters would compile them one after the other."""
    sizes = {"max_rows": 8, "max_tokens": 64, "max_drafts": 0}
    of_adapters = {"group_kernel", "shrink_kernel", "expand_kernel"}
    for num in (0, 8):
        wanted = Wanted(**sizes, max_adapters=num, max_adapter_rank=20)  # type: ignore[arg-type]
        launches = launches_of(gpt_oss("20b"), CardChoices(KNOWN[90]), wanted=wanted)
        ranks = {each.options["RANK"] for each in launches if each.name == "shrink_kernel"}
        assert ranks == ({32} if num else set())
        names = {launch.name for launch in launches}
        assert names & of_adapters == (of_adapters if num else set())


def test_of_ranks_one_alone_embeds() -> None:
    """The first exchange of a step is compiled with and without rows of one's own."""
    wanted = Wanted(max_rows=8, max_tokens=64, max_drafts=0, tensor_parallel=2)
    launches = launches_of(gpt_oss("20b"), CardChoices(KNOWN[90]), wanted=wanted)
    brought = {
        (launch.options["RANK"], launch.options["TOP_K"])
        for launch in launches
        if launch.name == "add_norm_of_ranks_kernel" and launch.options["IS_FRESH"]
    }
    assert brought == {(0, 0), (1, 1)}
