"""Which GPUs, and how much of their memory, the chosen profile gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from profiles.errors import NoCompatibleProfile
from profiles.hardware.gpus import BY_KEY
from profiles.hardware.machine import GB, Gpu
from profiles.hardware.written import parse_hardware
from profiles.selection.notes import where
from profiles.selection.selector import select, survey
from profiles.selection.verdicts import Constraints
from tests.profiles.surveys import ALL, NATIVE, PROFILES, chosen_on, with_free


def test_a_gpu_shared_with_neighbours_is_used_if_enough_is_free() -> None:
    busy = with_free("h200", 80)
    chosen = survey(PROFILES, busy, Constraints(installed=ALL)).chosen
    assert chosen.profile.model.name == "gpt-oss-120b"
    busier = with_free("h200", 30)
    chosen = survey(PROFILES, busier, Constraints(installed=ALL)).chosen
    assert chosen.profile.model.name == "gpt-oss-20b"


def test_the_gpus_with_the_most_free_memory_are_taken() -> None:
    machine = with_free("h200x4", 90, 140, 20, 130)
    wish = Constraints(model="gpt-oss-120b", tags={"tp": "2"}, installed=ALL)
    assert [gpu.index for gpu in survey(PROFILES, machine, wish).chosen.placement.gpus] == [1, 3]


def test_a_context_that_nobody_asked_for_is_as_long_as_fits_and_said() -> None:
    wish = Constraints(installed={"vllm": None})
    selection = survey(PROFILES, with_free("l4", 20), wish)
    assert selection.chosen.profile.model.name == "gpt-oss-20b"
    length = selection.chosen.max_model_len
    assert 8192 <= length < 131_072
    said = f"The context is {length:,} of 131,072 tokens; more does not fit into the free memory."
    assert selection.notes[-1] == said
    assert not survey(PROFILES, with_free("l4", 17), wish).compatible  # too short to think in


def test_the_larger_model_is_not_served_with_much_less_than_its_context() -> None:
    for free, model in ((71, "gpt-oss-120b"), (70, "gpt-oss-20b")):
        chosen = survey(PROFILES, with_free("h100", free), Constraints(installed=ALL)).chosen
        assert chosen.profile.model.name == model
        assert chosen.max_model_len >= 98_304


def test_engines_fill_the_machine_and_what_is_idle_is_said() -> None:
    full = survey(PROFILES, with_free("h200x4", 140, 140, 5, 140), Constraints(installed=ALL))
    assert [gpu.index for gpu in full.chosen.placement.gpus] == [0, 1, 3]
    assert full.chosen.placement.num_replicas == 3
    assert full.notes == (
        "1 x NVIDIA H200 (GPU 2) stays idle: too little of their memory is free, where an engine "
        "needs 73.8 GB.",
    )
    mixed = survey(PROFILES, parse_hardware("h200x2+l40s"), Constraints(installed=ALL))
    assert "NVIDIA L40S (GPU 2) stays idle: one server runs on GPUs of one kind" in mixed.notes[0]
    one = survey(PROFILES, parse_hardware("b200x8"), Constraints(num_replicas=1, installed=ALL))
    assert "(GPU 1-7) stay idle: NIM_REPLICAS is 1" in one.notes[0]
    three = survey(PROFILES, parse_hardware("b200x3"), Constraints(goal="latency", installed=ALL))
    assert "(GPU 2) stays idle: an engine of this profile takes 2" in three.notes[0]


def test_a_gpu_too_small_for_the_model_computes_a_part_of_its_layers() -> None:
    small: dict[str, Any] = {"installed": {"llama_cpp": None}, "model": "gpt-oss-20b"}
    for hardware, layers in (("rtx4070", 16), ("rtx4060", 12), ("rtx4080", None)):
        assert chosen_on(hardware, **small).profile.gpu_layers == layers
    # The rest must fit the machine's memory.
    assert chosen_on("rtx4060:ram=14gb", **small).profile.gpu_layers == 12
    wish = Constraints(**small)
    poor = survey(PROFILES, parse_hardware("rtx4060:ram=8gb"), wish)
    assert not poor.compatible
    reasons = {r.profile.name: r.reason for r in poor.rejections}
    assert reasons["llama_cpp-12-layers-mxfp4-tp1-pp1-balanced"] == (
        "needs 11.0 GB of the machine's memory beside the GPU, found 8.0 GB"
    )
    # One engine has the CPU to itself.
    slices = survey(PROFILES, parse_hardware("a100:1g.10gbx7"), wish)
    assert slices.chosen.placement.num_replicas == 1
    assert slices.notes[-1].endswith("stay idle: an engine of this profile needs the CPU, too.")


@pytest.mark.parametrize(
    ("hardware", "goal", "said"),
    [
        ("h100", None, "on GPU 0"),
        ("h100x2", None, "on GPUs 0-1: 2 engines side by side, each on a GPU of its own"),
        ("b200x8", "latency", "on GPUs 0-7: one engine on all"),
        ("b200x4+b200x4:free=2gb", "latency", "on GPUs 0-3: one engine on all"),
        ("gb200x8", "latency", "on GPUs 0-7: 2 engines side by side, each on 4 of its own"),
        ("cpu", None, "on the CPU"),
    ],
)
def test_where_an_engine_runs_is_said(hardware: str, goal: str | None, said: str) -> None:
    assert where(chosen_on(hardware, goal=goal).placement) == said


def test_slices_are_said_to_be_of_their_board() -> None:
    one, two = (replace(gpu, index=3) for gpu in parse_hardware("h200:3g.71gbx2").gpus)
    machine = replace(parse_hardware("cpu"), gpus=(one, replace(two, uuid="MIG-2")))
    placement = survey(PROFILES, machine, Constraints(installed=ALL)).chosen.placement
    assert where(placement) == (
        "on 2 slices of GPU 3: 2 engines side by side, each on a slice of its own"
    )


def test_mig_slices_serve_what_one_slice_holds() -> None:
    known = BY_KEY["h200"]
    parts = tuple(
        Gpu(0, "NVIDIA H200 MIG 1g.18gb", None, "2335:10de", known.compute_capability,
            size, size, is_mig=True)
        for size in (71 * GB, 71 * GB)
    )  # fmt: skip
    machine = replace(parse_hardware("cpu"), gpus=parts)
    selection = survey(PROFILES, machine, Constraints(installed=ALL))
    assert selection.chosen.profile.model.name == "gpt-oss-20b"
    assert all(candidate.profile.num_devices == 1 for candidate in selection.compatible)


def test_a_rack_is_served_host_by_host() -> None:
    selection = survey(PROFILES, parse_hardware("gb200x72"), Constraints(installed=ALL))
    assert len(selection.chosen.placement.gpus) == 72
    assert selection.notes == (
        "72 GPUs are 18 hosts with 4 each: run one server per host, with 4 engines, behind a "
        "load balancer.",
    )


def test_pcie_between_the_gpus_of_an_engine_is_avoided_and_else_warned_of() -> None:
    assert chosen_on("l40sx4").profile.num_devices == 1
    wish = Constraints(model="gpt-oss-120b", installed=ALL)
    selection = survey(PROFILES, parse_hardware("l40sx4"), wish)
    assert selection.chosen.placement.crosses_pcie
    assert selection.notes[0].startswith("The 4 GPUs of an engine have no NVLink between them: ")
    assert not survey(PROFILES, parse_hardware("a100-40x4"), wish).chosen.placement.crosses_pcie


@pytest.mark.parametrize(
    ("machine", "split", "context"),
    [("l40sx2", "1 x 2", 131_072), ("l40sx4", "2 x 2", 131_072), ("rtx4090x4", "1 x 4", 131_072),
     ("l4x4", "1 x 4", 131_072), ("rtx3090x4", "1 x 4", 131_072), ("rtx-a6000x2", "1 x 2", 131_072),
     ("a100-40x2", "1 x 2", 131_072), ("h100x2:used=40%", "1 x 2", 131_072)],
)  # fmt: skip
def test_the_native_engine_splits_the_large_model_over_small_gpus_if_it_is_named(
    machine: str, split: str, context: int
) -> None:
    wish = Constraints(installed=NATIVE, model="gpt-oss-120b")
    selection = survey(PROFILES, parse_hardware(machine), wish)
    chosen, size = selection.chosen, selection.chosen.profile.num_devices
    assert f"{chosen.placement.num_replicas} x {size}" == split
    assert chosen.profile.parallelism.pp == size
    assert chosen.max_model_len == context
    taken = chosen.placement.need.total_bytes(context)
    assert taken <= chosen.placement.usable_bytes < 2 * taken
    assert any("compute each token one after another" in note for note in selection.notes)
    assert not any("no NVLink" in note for note in selection.notes)
    unnamed = survey(PROFILES, parse_hardware(machine), Constraints(installed=NATIVE))
    assert unnamed.chosen.profile.model.name == "gpt-oss-20b"


def test_gpus_that_compute_in_turn_do_not_shorten_a_token() -> None:
    wish = Constraints(installed=NATIVE, model="gpt-oss-120b", goal="latency")
    chosen = survey(PROFILES, parse_hardware("l40sx4"), wish).chosen
    assert chosen.profile.parallelism.pp == 2


def test_an_engine_built_for_the_cpu_only_is_not_chosen_for_a_gpu() -> None:
    cpu_only = {"native": "built for CPUs only: PyTorch is its CPU build"}
    wish = Constraints(installed=NATIVE, cpu_only=cpu_only)
    selection = survey(PROFILES, parse_hardware("h100"), wish)
    assert not selection.compatible
    assert any(cpu_only["native"] in r.missing_engine for r in selection.rejections)
    assert survey(PROFILES, parse_hardware("h100"), replace(wish, cpu_only={})).chosen.profile.gpu
    with pytest.raises(NoCompatibleProfile, match=r"^gpt-oss-20b fits .*H100.* engine native is"):
        select(PROFILES, parse_hardware("h100"), replace(wish, model="gpt-oss-20b"))
