"""The selector: invariants on any machine, and what comes first of what can run."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from profiles.catalogue.catalogue import Catalogue
from profiles.catalogue.models import Profile
from profiles.hardware.gpus import KNOWN_GPUS
from profiles.hardware.machine import GB, Cpu, Gpu, Hardware
from profiles.hardware.written import parse_hardware
from profiles.selection.memory import memory_need
from profiles.selection.placement import Placement, place
from profiles.selection.selector import survey
from profiles.selection.verdicts import Constraints, Fit, Selection
from tests.examples import examples
from tests.profiles.surveys import ALL, NATIVE, PROFILES, chosen_on, reason_for, surveyed


@st.composite
def gpus(draw: st.DrawFn, index: int = 0) -> Gpu:
    known = draw(st.sampled_from(KNOWN_GPUS))
    is_mig = draw(st.booleans()) and draw(st.booleans())
    return Gpu(
        index=index,
        name=known.name,
        key=None if is_mig else known.key,
        pci_id="",
        compute_capability=known.compute_capability,
        total_bytes=known.total_bytes,
        free_bytes=int(known.total_bytes * draw(st.floats(0, 1))),
        is_mig=is_mig,
        nvlink=draw(st.sampled_from([1, known.nvlink])),
        host=draw(st.integers(0, 1)),
    )


@st.composite
def machines(draw: st.DrawFn) -> Hardware:
    pattern = draw(gpus())
    alike = draw(st.integers(0, 8))
    boards = [replace(pattern, index=i) for i in range(alike)]
    boards += [draw(gpus(index=alike + i)) for i in range(draw(st.integers(0, 2)))]
    memory = draw(st.integers(0, 64)) * GB
    return Hardware(Cpu("any", 2, memory, memory), tuple(boards), "" if boards else "none here")


wishes = st.builds(
    Constraints,
    model=st.sampled_from([None, "nano", "gpt-oss-20b", "openai/gpt-oss-120b"]),
    goal=st.sampled_from([None, "latency", "balanced", "throughput"]),
    engine=st.sampled_from([None, "native", "vllm", "tensorrt_llm", "llama_cpp"]),
    tags=st.sampled_from([{}, {"tp": "2"}, {"profile": "latency", "gpu": "h200"}]),
    max_model_len=st.sampled_from([None, 2048, 131072]),
    num_replicas=st.sampled_from([None, None, 1, 2]),
    installed=st.sampled_from([None, ALL, NATIVE, {}]),
)


@examples(100)
@given(machine=machines(), wish=wishes, seed=st.integers(0, 9))
def test_invariants(machine: Hardware, wish: Constraints, seed: int) -> None:
    selection = survey(PROFILES, machine, wish)
    shuffled = random.Random(seed).sample(PROFILES, len(PROFILES))
    again = survey(shuffled, machine, wish)

    # Every profile is in exactly one place, and every rejection says why.
    runnable = [candidate.profile.title for candidate in selection.compatible]
    rejected = [rejection.profile.title for rejection in selection.rejections]
    assert sorted(runnable + rejected) == sorted(profile.title for profile in PROFILES)
    assert all(rejection.reason for rejection in selection.rejections)
    assert selection.reason.endswith(".")
    # The order of the catalogue changes nothing.
    assert [c.profile.title for c in again.compatible] == runnable
    assert again.reason == selection.reason
    check_placements(selection, machine, wish)
    check_low_memory(selection, machine, wish)


def check_placements(selection: Selection, machine: Hardware, wish: Constraints) -> None:
    """Nothing runnable needs more than there is."""
    for candidate in selection.compatible:
        profile, used = candidate.profile, candidate.placement.gpus
        needed = memory_need(profile).total_bytes(candidate.max_model_len)
        if profile.gpu is None:
            assert used == ()
            assert needed <= machine.cpu.free_bytes
        else:
            engines = candidate.placement.by_replica
            assert len({gpu.index for gpu in used}) == len(used)
            assert {len(team) for team in engines} == {profile.num_devices}
            assert wish.num_replicas in (None, len(engines))
            assert len({gpu.name for gpu in used}) == 1
            assert all(len({gpu.host for gpu in team}) == 1 for team in engines)
            assert all(needed <= gpu.free_bytes for gpu in used)
            assert profile.num_devices == 1 or not any(gpu.is_mig for gpu in used)
            assert not profile.gpu.names or {gpu.key for gpu in used} <= set(profile.gpu.names)
        assert wish.installed is None or wish.installed.get(profile.engine, "absent") is None
        assert profile.status != "planned"
        assert candidate.max_model_len <= profile.limits.max_model_len
        assert wish.max_model_len in (None, candidate.max_model_len)


def check_low_memory(selection: Selection, machine: Hardware, wish: Constraints) -> None:
    """The context length that is offered instead does fit."""
    for rejection in selection.rejections:
        assert (rejection.max_model_len is not None) == (rejection.fit is Fit.LOW_MEMORY)
        if rejection.max_model_len is not None:
            shorter = rejection.max_model_len
            placed = place(rejection.profile, machine, shorter, wish.num_replicas)
            assert isinstance(placed, Placement)


def test_two_gpus_answer_together_for_latency_and_side_by_side_otherwise() -> None:
    def chosen(gpus: str, **wish: Any) -> tuple[str, int, int]:
        machine = parse_hardware(gpus)
        wanted = Constraints(model="gpt-oss-20b", engine="native", **wish)
        found = survey(PROFILES, machine, wanted).chosen
        return (found.profile.goal, found.profile.parallelism.tp, found.placement.num_replicas)

    assert chosen("h200x2", goal="latency") == ("latency", 2, 1)
    assert chosen("h200x4", goal="latency") == ("latency", 2, 2)
    assert chosen("h200x2") == ("balanced", 1, 2)
    assert chosen("h200x8", goal="latency", tags={"tp": "4"}) == ("latency", 4, 2)
    assert chosen("h200x8", goal="latency", tags={"tp": "8"}) == ("latency", 8, 1)


def test_a_model_that_fits_no_card_alone_is_shared_by_two_that_nvlink_joins() -> None:
    """Cards that others use: layers one after another are slower, and PCIe was not measured."""

    def chosen(gpus: str) -> str:
        wish = Constraints(model="gpt-oss-120b", engine="native")
        return survey(PROFILES, parse_hardware(gpus), wish).chosen.profile.name

    assert chosen("h200x2:free=48gb") == "native-h200-mxfp4-tp2-pp1-balanced"
    assert chosen("h200x2:used=50%") == "native-h200-mxfp4-tp1-pp1-balanced"
    assert chosen("l40sx2") == "native-ada-mxfp4-tp1-pp2-balanced"


def test_gpus_that_were_not_measured_together_share_layers_where_that_is_asked_for() -> None:
    def chosen(gpus: str, **wish: Any) -> int:
        machine = parse_hardware(gpus)
        wanted = Constraints(model="gpt-oss-20b", engine="native", goal="latency", **wish)
        return survey(PROFILES, machine, wanted).chosen.profile.parallelism.tp

    assert chosen("h100x2") == 1
    assert chosen("h100x2", tags={"tp": "2"}) == 2
    assert chosen("h200x4", tags={"tp": "4"}) == 4


def test_processes_that_share_layers_on_a_cpu_run_where_they_are_asked_for_alone() -> None:
    machine = parse_hardware("cpux8:ram=32gb")
    for goal in ("latency", "balanced", "throughput"):
        chosen = survey(PROFILES, machine, Constraints(model="nano", goal=goal)).chosen
        assert chosen.profile.parallelism.tp == 1
    one = survey(PROFILES, machine, Constraints(model="nano")).chosen
    two = survey(PROFILES, machine, Constraints(model="nano", tags={"tp": "2"})).chosen
    assert (two.profile.num_devices, two.profile.parallelism.ep) == (1, 2)
    needs = [memory_need(each.profile) for each in (one, two)]
    assert needs[0].kv_bytes_per_token == needs[1].kv_bytes_per_token  # of all ranks together
    assert needs[1].workspace_bytes - needs[0].workspace_bytes == 1 * GB  # a process more


def test_beside_the_demonstration_model_the_way_to_a_real_one_is_named() -> None:
    wish = Constraints(installed={"native": None, "llama_cpp": "not installed: run this"})
    selection = survey(PROFILES, parse_hardware("cpu"), wish)
    assert selection.chosen.profile.model.name == "nano"
    assert selection.notes[0] == ("For gpt-oss-20b on this CPU (12.1 GB): run this.")


def test_beside_the_demonstration_model_the_memory_of_a_real_one_is_named() -> None:
    small = parse_hardware("cpux2:ram=8gb")
    note = survey(PROFILES, small, Constraints()).notes[0]
    assert note.startswith("A real model needs more memory than is free: gpt-oss-20b takes 1")


def test_an_engine_that_is_missing_and_faster_here_is_named() -> None:
    installed = {**ALL, "vllm": "not installed: no adapter"}
    wish = Constraints(goal="throughput", model="gpt-oss-120b", installed=installed)
    note = survey(PROFILES, parse_hardware("b200"), wish).notes[0]
    assert note.startswith("gpt-oss-120b/vllm-b200-mxfp4-tp1-pp1-throughput would be preferred")
    assert "25,943 tok/s" in note
    assert note.endswith("but engine vllm is not installed: no adapter.")
    # On an H100 what is installed is the faster one.
    assert survey(PROFILES, parse_hardware("h100"), wish).notes == ()


def test_an_engine_that_was_never_run_comes_after_those_that_were() -> None:
    for machine in ("h100x8", "h200x8", "b200x8", "gb200x4", "l40s", "a100x8"):
        for goal in ("latency", "balanced", "throughput"):
            selection = surveyed(machine, goal=goal, model="gpt-oss-120b")
            engines = [candidate.profile.engine for candidate in selection.compatible]
            assert engines[0] != "tensorrt_llm", (machine, goal)


def test_rivals_differ_in_engine_gpus_and_model() -> None:
    selection = survey(PROFILES, parse_hardware("b200x8"), Constraints(installed=ALL))
    first, *rivals = [selection.chosen.profile, *(r.profile for r in selection.rivals)]
    assert first.engine == "vllm"
    assert rivals[0].engine != "vllm"
    assert rivals[1].num_devices != first.num_devices
    assert rivals[2].model.name == "gpt-oss-20b"
    assert selection.rivals[2].reason == "it serves the larger model"
    assert f"is preferred to {rivals[0].title} because " in selection.reason


def test_of_two_kinds_of_gpus_the_faster_serves() -> None:
    for goal in ("latency", "balanced", "throughput"):
        chosen = chosen_on("h100x4+a100x4", goal=goal)
        assert {gpu.key for gpu in chosen.placement.gpus} == {"h100"}
        assert len(chosen.placement.gpus) == 4
    # Many slower boards together read more than one fast one, for many users.
    many = chosen_on("h200+a100x8", model="gpt-oss-20b", goal="throughput")
    assert {gpu.key for gpu in many.placement.gpus} == {"a100"}
    one = chosen_on("h200+a100x8", model="gpt-oss-20b", goal="latency")
    assert {gpu.key for gpu in one.placement.gpus} == {"h200"}


def test_a_batch_gets_the_memory_that_it_needs() -> None:
    for goal in ("latency", "balanced", "throughput"):
        placement = chosen_on("h200:1g.18gbx7", goal=goal).placement
        assert placement.kv_tokens >= 60_000
        assert placement.kv_tokens >= 256 * placement.limits.max_num_seqs


def test_of_unified_memory_a_quarter_is_left_to_the_system() -> None:
    chosen = chosen_on("gb10")
    total = chosen.placement.gpus[0].total_bytes
    assert chosen.placement.usable_bytes == int(0.75 * total)
    assert chosen.placement.memory_fraction(chosen.profile) == 0.75
    assert chosen_on("h100").placement.memory_fraction(chosen.profile) == 0.9


def test_a_large_model_that_nobody_named_comes_with_the_smaller_one() -> None:
    told = "NIM_MODEL_NAME=gpt-oss-20b is 13.8 GB, faster, and runs here too."
    machine = parse_hardware("h100")
    assert survey(PROFILES, machine, Constraints(installed=ALL)).reason.endswith(told)
    named = Constraints(model="gpt-oss-120b", installed=ALL)
    assert told not in survey(PROFILES, machine, named).reason
    # The files are those of the engine: llama.cpp has its own.
    gguf = Constraints(installed={"llama_cpp": None})
    reason = survey(PROFILES, machine, gguf).reason
    assert "gpt-oss-120b, 63.4 GB of files. NIM_MODEL_NAME=gpt-oss-20b is 12.1 GB" in reason


def test_drafts_are_taken_only_when_asked_for() -> None:
    assert not any(c.profile.draft for c in surveyed("h200").compatible)
    name = "vllm-h200-mxfp4-tp1-pp1-latency-eagle3"
    asked = surveyed("h200", tags={"speculation": "eagle3", "engine": "vllm"}).chosen.profile
    named = surveyed("h200", profile=name).chosen.profile
    assert asked.name == named.name == name
    assert named.draft


def test_a_head_that_does_not_fit_shortens_the_context_or_is_refused() -> None:
    tags = {"speculation": "eagle3", "engine": "vllm"}
    (shorter,) = surveyed("h200:free=80gb", tags=tags).compatible
    assert 8192 <= shorter.max_model_len < 131_072
    title = "gpt-oss-120b/vllm-h200-mxfp4-tp1-pp1-latency-eagle3"
    reason = reason_for(title, "h200:free=68gb", tags=tags)
    assert "70.9 GB weights, 1.6 GB of them the draft head's" in reason


def test_a_profile_is_asked_for_by_any_of_its_names() -> None:
    machine = parse_hardware("h200x2")
    wanted = next(p for p in PROFILES if p.title == "gpt-oss-20b/vllm-gpu-mxfp4-tp2-pp1-balanced")
    for name in (wanted.id, wanted.title):
        wish = Constraints(profile=name, installed=ALL)
        assert survey(PROFILES, machine, wish).chosen.profile is wanted
    # NIM 2's names leave GPU and goal open: the ranking decides among those that are left.
    wish = Constraints(profile="vllm-mxfp4-tp2-pp1", model="gpt-oss-20b", installed=ALL)
    found = {c.profile.name for c in survey(PROFILES, machine, wish).compatible}
    assert wanted.name in found
    assert all("tp2" in name and name.startswith("vllm") for name in found)
    default = survey(PROFILES, machine, Constraints(profile="default", installed=ALL))
    assert default.chosen == survey(PROFILES, machine, Constraints(installed=ALL)).chosen


def test_a_goal_is_a_wish_that_the_reason_mentions() -> None:
    wish = Constraints(goal="latency", engine="vllm", installed=ALL)
    selection = survey(PROFILES, parse_hardware("h200x8"), wish)
    assert selection.chosen.profile.name == "vllm-hopper-mxfp4-tp8-pp1-latency"
    only_balanced = surveyed("cpu", goal="latency", model="nano")
    assert only_balanced.notes == (
        "No profile of nano that can run here is tuned for latency; this one is tuned for balance.",
    )


def ranked(*profiles: Profile, hardware: str = "h200x8", **wishes: object) -> list[str]:
    constraints = Constraints(**wishes)  # type: ignore[arg-type]
    selection = survey(profiles, parse_hardware(hardware), constraints)
    return [candidate.profile.title for candidate in selection.compatible]


def test_tuned_comes_before_published_before_untuned_before_compiled(catalogue: Catalogue) -> None:
    first = next(p for p in PROFILES if p.name == "vllm-hopper-mxfp4-tp2-pp1-balanced")
    titles = []
    statuses = ("compiled", "untuned", "tuned", "published")
    for status, fraction in zip(statuses, (0.6, 0.7, 0.8, 0.9), strict=True):
        update = {"status": status, "memory_fraction": fraction, "engine": "vllm"}
        titles.append(first.model_copy(update=update))
    selection = survey(titles, parse_hardware("h200x2"), Constraints())
    found = [c.profile.status for c in selection.compatible]
    assert found == ["tuned", "published", "untuned", "compiled"]
    assert "its settings are better tested" in selection.reason


def test_throughput_takes_fewer_gpus_and_latency_more() -> None:
    for engine in ("tensorrt_llm", "vllm"):
        wishes = {"engine": engine, "model": "gpt-oss-120b"}
        for goal, split in (("throughput", "tp1"), ("balanced", "tp1"), ("latency", "tp8")):
            assert f"-{split}-" in ranked(*PROFILES, goal=goal, **wishes)[0]
