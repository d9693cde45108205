"""What an operator reads where a GPU is too full for the engine, by the figures alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from engines.errors import EngineStartError
from engines.native.backends.cuda.memory import room
from engines.native.backends.cuda.memory.room import (
    DeviceMemory,
    Need,
    check_room,
    kv_budget,
    parse_processes,
    shortage,
    tell_unequal,
    work_bytes,
)
from engines.native.config import ModelConfig, NativeConfig
from engines.native.kv_pool import block_bytes, choose_num_blocks
from engines.native.layer_split import part_of, split_layers
from engines.native.weights import CheckpointTensors
from profiles.catalogue import catalogue
from profiles.catalogue.models import Limits
from profiles.selection.memory import memory_need
from tests.engines.native.cuda.kernels.kernel_fixtures import IS_GPU
from tests.engines.native.small_model import small_config, write_small

from engines.native.backends.cuda.memory.adapter_room import AdapterRoom  # isort: skip
from engines.native.backends.cuda.steps.adapted import StageAdapters  # isort: skip
from engines.native.backends.cuda.weights import packed_files  # isort: skip
from engines.native.backends.cuda import loading  # isort: skip
from engines.native.backends.cuda.artefact.kept import Artefact  # isort: skip
from engines.native.backends.cuda.offline.published import gpt_oss  # isort: skip

GB = 10**9
CONFIG = NativeConfig(
    Path("gpt-oss-20b"), device="cuda", dtype="bfloat16", max_model_len=131_072, block_size=64,
    max_num_seqs=512, max_num_batched_tokens=8192,
)  # fmt: skip
FULL = DeviceMemory("NVIDIA H100", total=85 * GB, free=17 * GB)


def need(config: NativeConfig = CONFIG) -> Need:
    return Need.of(gpt_oss("20b"), config, weights=14 * GB)


def test_all_figures_the_holders_and_the_remedies_are_told() -> None:
    words = shortage(FULL, need(), {4711: 60 * GB, 12: 7 * GB})
    assert words.startswith("NVIDIA H100 has 17.0 GB of 85.0 GB free, and the engine needs 21.2 GB")
    assert "14.0 GB for the weights, 3.7 GB for graphs" in words
    assert "3.4 GB at least for K/V of one sequence of 131072 tokens" in words
    assert (
        "other processes use 68.0 GB (process 4711: 60.0 GB, process 12: 7.0 GB): stop them"
        in words
    )
    assert "(CUDA_VISIBLE_DEVICES)" in words
    assert "NIM_MAX_MODEL_LEN" not in words  # without any K/V it would not fit either


def test_a_shorter_context_is_named_where_it_helps() -> None:
    words = shortage(replace(FULL, free=19 * GB), need(), {})
    assert "others hold 66.0 GB, and NVML names none of them" in words
    assert words.endswith(", or lower max_model_len (NIM_MAX_MODEL_LEN)")


def test_a_pool_of_a_given_size_is_what_is_needed() -> None:
    given = need(replace(CONFIG, num_kv_blocks=50_000))
    assert given.kv == 50_000 * 12 * 64 * 2 * 512 * 2
    assert "K/V of 50000 blocks" in shortage(FULL, given, {})
    assert given.remedy == "lower num_kv_blocks"


def test_a_small_gpu_of_ones_own_is_not_said_to_be_held_by_others() -> None:
    words = shortage(DeviceMemory("NVIDIA L4", 24 * GB, 23 * GB), need(), {})
    assert "others" not in words
    assert "use a GPU with more memory" in words


def test_the_rank_that_has_less_memory_than_the_others_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = [140 * GB, 60 * GB, 139 * GB]

    def read(device: torch.device) -> DeviceMemory:
        return DeviceMemory(f"GPU {device.index} (NVIDIA H200)", 150 * GB, free[device.index])

    monkeypatch.setattr(DeviceMemory, "read", read)
    monkeypatch.setattr(room, "_other_processes", lambda _: {4711: 80 * GB})
    tell_unequal([torch.device("cuda", index) for index in range(3)])
    [line] = caplog.messages
    assert line.startswith("GPU 1 (NVIDIA H200) has 60.0 GB free")
    assert "140.0 GB: all get as much K/V as this one has room for" in line
    assert "process 4711: 80.0 GB): stop them" in line


@pytest.mark.parametrize("num_kv_blocks", [None, 5_000])
def test_what_is_needed_is_what_the_pool_is_made_from(num_kv_blocks: int | None) -> None:
    model, config = gpt_oss("20b"), replace(CONFIG, num_kv_blocks=num_kv_blocks)
    least = need(config)
    free, work = least.total - least.weights, work_bytes(model, config)
    assert choose_num_blocks(model, config, kv_budget(free, free, 1.0, work, 0)) * 64 >= 131_072
    with pytest.raises(EngineStartError, match=r"lower (max_model_len|num_kv_blocks)"):
        choose_num_blocks(model, config, kv_budget(free - (4 << 20), free, 1.0, work, 0))


def test_a_full_gpu_is_told_before_the_weights_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = "GPU:0\nprocess  4711 uses 80000.000 MB GPU memory"
    monkeypatch.setattr(loading, "check_computable", lambda *_: None)
    monkeypatch.setattr(Artefact, "weights", lambda *_: pytest.fail("they are loaded"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (GB // 2, 85 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    monkeypatch.setattr(torch.cuda, "list_gpu_processes", lambda _: listed)
    folder = write_small(tmp_path, small_config(vocab_size=60))
    config = NativeConfig(folder, device="cuda", dtype="bfloat16")
    words = r"NVIDIA H100 has 0\.5 GB of 85\.0 GB free, .*process 4711: 83\.9 GB"
    with pytest.raises(EngineStartError, match=words):
        loading.load_cuda(config, ModelConfig.from_dir(folder))


@pytest.mark.skipif(not IS_GPU, reason="it fills a GPU; make test-gpu runs it")
def test_what_another_process_holds_is_said_to_be_held() -> None:
    hold = "import sys, torch; t = torch.zeros(3 << 30, dtype=torch.uint8, device='cuda')"
    program = f"{hold}; print('held', flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        device = torch.device("cuda")
        whole = replace(need(), weights=DeviceMemory.read(device).total)
        named = rf"others hold \d+\.\d GB|process {other.pid}: \d"  # a container names none
        with pytest.raises(EngineStartError, match=named):
            check_room(device, whole)
        other.communicate()


def test_torchs_list_of_processes_is_read_without_our_own() -> None:
    listed = """GPU:0
process         12 uses      100.000 MB GPU memory
process       4711 uses    61440.500 MB GPU memory
process          7 uses     2048.000 MB GPU memory"""
    assert parse_processes(listed, own_pid=7) == {4711: int(61440.5 * 2**20), 12: 100 * 2**20}
    assert parse_processes("GPU:0\nno processes are running", own_pid=7) == {}


@pytest.mark.parametrize(
    ("others", "fraction", "usual", "longest"),
    [
        (0, 0.9, 109, 109),
        (0, 0.5, 53, 53),
        (0, 1.0, 123, 123),
        (40, 0.9, 73, 83),  # a tenth of what they leave stays free, unless a sequence needs it
        (40, 0.5, 53, 53),
        (40, 1.0, 83, 83),
    ],
)
def test_the_cache_gets_the_gpus_share_of_what_others_leave(
    others: int, fraction: float, usual: int, longest: int
) -> None:
    weights, work = 13 * GB, 4 * GB
    free = (140 - others) * GB - weights
    budget = kv_budget(free, 140 * GB, fraction, work, weights)
    assert round(budget.usual_bytes / GB, 3) == usual
    assert round(budget.automatic_bytes / GB, 3) == longest
    assert budget.free_bytes == free - work


def test_a_model_starts_on_what_others_leave_of_a_large_gpu() -> None:
    """Half of gpt-oss-120b on an H200 of which others hold all but 48 GB, as on a GPU of 48 GB."""
    model, weights = part_of(gpt_oss("120b"), range(18)), int(33.2 * GB)
    work = work_bytes(model, CONFIG)
    budget = kv_budget(48 * GB - weights, 150 * GB, 0.9, work, weights)
    own = kv_budget(48 * GB - weights, 48 * GB, 0.9, work, weights)
    assert choose_num_blocks(model, CONFIG, budget) >= choose_num_blocks(model, CONFIG, own)
    assert choose_num_blocks(model, CONFIG, own) * 64 > 131_072


def test_a_gpu_without_room_has_no_cache() -> None:
    assert kv_budget(GB, 80 * GB, 0.9, 4 * GB, 13 * GB).automatic_bytes == 0


def test_coding_agents_fit_an_h200_by_default() -> None:
    """64 contexts of 28,000 tokens stay in the cache of the profile that is chosen by default."""
    model, work = gpt_oss("20b"), work_bytes(gpt_oss("20b"), CONFIG)
    budget = kv_budget(int(136e9), int(150.7e9), 0.9, work, int(14e9))
    assert choose_num_blocks(model, CONFIG, budget) > 64 * 28_000 / 64
    assert choose_num_blocks(model, CONFIG, budget) > 70_000


def test_a_small_model_takes_what_its_longest_sequences_can_use(tmp_path: Path) -> None:
    config = replace(CONFIG, max_num_seqs=2, max_model_len=256, max_num_batched_tokens=256)
    budget = kv_budget(100 * GB, 140 * GB, 0.9, 4 * GB, 14 * GB)
    assert choose_num_blocks(gpt_oss("20b"), config, budget) == 2 * (4 + 4) + 1


def test_the_work_space_is_what_the_selector_takes_it_for() -> None:
    limits = Limits(max_model_len=131_072, max_num_seqs=512, max_num_batched_tokens=8192)
    profiles = catalogue.load().profiles
    found = next(p for p in profiles if p.title == "gpt-oss-20b/native-h200-mxfp4-tp1-pp1-balanced")
    assert found.limits == limits
    assert work_bytes(gpt_oss("20b"), CONFIG) == pytest.approx(
        memory_need(found).workspace_bytes, rel=0.05
    )


def test_adapters_have_their_room_before_the_cache() -> None:
    config = replace(CONFIG, max_adapters=8, max_adapter_rank=50)
    model, room = gpt_oss("20b"), AdapterRoom(8, 64)
    rows, tokens = config.max_num_seqs, config.max_num_batched_tokens
    own = StageAdapters.allocate(model, room, rows, tokens, torch.device("meta"))
    scratch = (own.ranks, own.places, own.members, own.parts)
    held = sum(
        each.nbytes for each in (*scratch, *(t for pair in own.pairs.values() for t in pair))
    )
    counted = work_bytes(model, config) - work_bytes(model, CONFIG)
    assert held < counted < held + GB  # one on its way, and the graphs
    assert "NIM_MAX_GPU_LORAS" in Need.of(model, config, 14 * GB).remedy


@pytest.mark.parametrize("num_gpus", [1, 2, 4])
def test_each_gpu_of_a_split_model_holds_what_the_selector_counts(num_gpus: int) -> None:
    """Weights of the fullest GPU, and K/V of one sequence; the selector leaves out the padding."""
    published = cast(CheckpointTensors, SimpleNamespace(is_packed=lambda name: True))
    model, base = gpt_oss("120b"), "ada" if num_gpus > 1 else "hopper"
    title = f"gpt-oss-120b/native-{base}-mxfp4-tp1-pp{num_gpus}-throughput"
    found = next(p for p in catalogue.load().profiles if p.title == title)
    need, split = memory_need(found), split_layers(model.num_hidden_layers, num_gpus)
    weights = max(packed_files.num_bytes(published, model, layers) for layers in split)
    assert weights == pytest.approx(need.weights_bytes, rel=0.03)
    parts = [part_of(model, layers) for layers in split]
    one_block = max(block_bytes(part, CONFIG) for part in parts)
    assert need.kv_bytes_per_token * CONFIG.block_size == one_block
