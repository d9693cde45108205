"""The selector: invariants on any machine, and the reasons a user reads."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.catalogue import Catalogue, load
from profiles.errors import InvalidConstraint, NoCompatibleProfile
from profiles.gpus import BY_KEY, KNOWN_GPUS
from profiles.machine import GB, Cpu, Gpu, Hardware
from profiles.memory import memory_need
from profiles.models import Profile
from profiles.notes import where
from profiles.placement import Placement, place
from profiles.selector import select, survey
from profiles.verdicts import Candidate, Constraints, Fit, Selection
from profiles.written import parse_hardware
from tests.examples import examples

ALL = {"native": None, "vllm": None, "tensorrt_llm": None, "llama_cpp": None}
GPU_SERVERS = {name: None for name in ALL if name != "llama_cpp"}
NATIVE = {
    "native": None,
    "vllm": "not installed: the library is missing",
    "tensorrt_llm": "not installed: no adapter",
    "llama_cpp": "not installed: the library is missing",
}
PROFILES = load().profiles


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


def reason_for(title: str, hardware: str | Hardware, **wishes: object) -> str:
    machine = parse_hardware(hardware) if isinstance(hardware, str) else hardware
    constraints = Constraints(**{"installed": ALL, **wishes})  # type: ignore[arg-type]
    selection = survey(PROFILES, machine, constraints)
    return next(r.reason for r in selection.rejections if r.profile.title == title)


@pytest.mark.parametrize(
    ("title", "hardware", "reason"),
    [
        (
            "gpt-oss-20b/vllm-hopper-mxfp4-tp2-pp1-balanced",
            "h200",
            "needs 2 GPUs of the Hopper family, found 1 x NVIDIA H200",
        ),
        (
            "gpt-oss-120b/tensorrt_llm-blackwell-mxfp4-tp1-pp1-latency",
            "h200x8",
            "needs 1 GPU (GB200, B300 or GB300), found 8 x NVIDIA H200",
        ),
        (
            "gpt-oss-120b/vllm-80gb-mxfp4-tp1-pp1-throughput",
            "cpu",
            "needs 1 GPU (H100, H100-PCIE or A100), found none: the machine was written down "
            "without one",
        ),
        (
            "gpt-oss-120b/vllm-hopper-mxfp4-tp1-pp1-throughput",
            "h100",
            "needs 1 GPU of the Hopper family with at least 90 GB, "
            "found 1 x NVIDIA H100 80GB HBM3 with 85.5 GB",
        ),
        (
            "gpt-oss-120b/llama_cpp-gpu-mxfp4-tp1-pp1-balanced",
            "l40s",
            "needs 74.0 GB (63.2 GB weights, 1.1 GB workspace, 9.7 GB for one sequence of "
            "131,072 tokens), found 45.9 GB usable on 1 x NVIDIA L40S",
        ),
        (
            "gpt-oss-20b/native-blackwell-mxfp4-tp1-pp1-latency",
            "b200",
            "is planned only: the native engine's GPU kernels run on Hopper; the same code has not "
            "been run on Blackwell yet, and these limits are untuned",
        ),
    ],
)
def test_hardware_reasons(title: str, hardware: str, reason: str) -> None:
    assert reason_for(title, hardware) == reason


def test_a_missing_engine_is_a_class_of_its_own() -> None:
    title = "gpt-oss-20b/vllm-gpu-mxfp4-tp1-pp1-balanced"
    reason = reason_for(title, "l40s", installed=NATIVE)
    assert reason == "engine vllm is not installed: the library is missing"
    assert "there is no adapter for it" in reason_for(title, "l40s", installed={})
    selection = survey(PROFILES, parse_hardware("l40s"), Constraints(installed=NATIVE))
    fits = {r.profile.title: r.fit for r in selection.rejections}
    assert fits[title] is Fit.NOT_INSTALLED
    assert selection.chosen.profile.model.name == "nano"


def test_an_old_gpu_is_told_its_capability() -> None:
    turing = Gpu(0, "Tesla T4", None, "1eb8:10de", (7, 5), 16 * GB, 16 * GB)
    machine = replace(parse_hardware("cpu"), gpus=(turing,))
    assert reason_for("gpt-oss-20b/vllm-gpu-mxfp4-tp1-pp1-balanced", machine) == (
        "needs 1 GPU of compute capability 8.0 or newer, "
        "found 1 x Tesla T4 of compute capability 7.5"
    )


def with_free(hardware: str, *free_gb: float) -> Hardware:
    machine = parse_hardware(hardware)
    pairs = zip(machine.gpus, free_gb, strict=True)
    return replace(
        machine, gpus=tuple(replace(gpu, free_bytes=int(free * GB)) for gpu, free in pairs)
    )


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


def test_gpus_of_different_kinds_are_not_joined() -> None:
    mixed = replace(
        parse_hardware("h100"), gpus=parse_hardware("h100").gpus + parse_hardware("h200").gpus
    )
    reason = reason_for("gpt-oss-20b/vllm-hopper-mxfp4-tp2-pp1-balanced", mixed)
    assert reason.endswith("found 1 x NVIDIA H100 80GB HBM3, 1 x NVIDIA H200")


def test_a_length_that_was_asked_for_and_does_not_fit_is_low_memory() -> None:
    wish = Constraints(model="gpt-oss-20b", max_model_len=131_072, installed={"vllm": None})
    machine = with_free("l4", 20)
    low = [r for r in survey(PROFILES, machine, wish).rejections if r.fit is Fit.LOW_MEMORY]
    by_name = {rejection.profile.name: rejection for rejection in low}
    balanced = by_name["vllm-gpu-mxfp4-tp1-pp1-balanced"]
    assert balanced.max_model_len is not None
    assert balanced.reason.endswith(f"a context of {balanced.max_model_len:,} tokens would fit")
    shorter = replace(wish, max_model_len=balanced.max_model_len)
    assert survey(PROFILES, machine, shorter).chosen.max_model_len == balanced.max_model_len


def test_a_context_that_nobody_asked_for_is_as_long_as_fits_and_said() -> None:
    wish = Constraints(installed={"vllm": None, "native": None})
    selection = survey(PROFILES, with_free("l4", 20), wish)
    assert selection.chosen.profile.model.name == "gpt-oss-20b"
    length = selection.chosen.max_model_len
    assert 8192 <= length < 131_072
    said = f"The context is {length:,} of 131,072 tokens: the free memory holds no more."
    assert selection.notes[-1] == said
    # Too short to think in: the demonstration is left.
    assert survey(PROFILES, with_free("l4", 17), wish).chosen.profile.model.name == "nano"


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
        "needs 71.7 GB.",
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
        "needs 10.9 GB of the machine's memory beside the GPU, found 8.0 GB"
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


def test_a_rack_is_served_host_by_host() -> None:
    selection = survey(PROFILES, parse_hardware("gb200x72"), Constraints(installed=ALL))
    assert len(selection.chosen.placement.gpus) == 72
    assert selection.notes == (
        "72 GPUs are 18 hosts of 4: run one server on each, with 4 engines, behind one address.",
    )


def test_pcie_between_the_gpus_of_an_engine_is_avoided_and_else_warned_of() -> None:
    assert chosen_on("l40sx4").profile.num_devices == 1
    wish = Constraints(model="gpt-oss-120b", installed=ALL)
    selection = survey(PROFILES, parse_hardware("l40sx4"), wish)
    assert selection.chosen.placement.crosses_pcie
    assert selection.notes[0].startswith("The 4 GPUs of an engine have no NVLink between them: ")
    assert not survey(PROFILES, parse_hardware("a100-40x4"), wish).chosen.placement.crosses_pcie


def chosen_on(hardware: str, **wishes: Any) -> Candidate:
    wish = Constraints(**{"installed": ALL, **wishes})
    return survey(PROFILES, parse_hardware(hardware), wish).chosen


def test_an_engine_that_is_missing_and_faster_here_is_named() -> None:
    wish = Constraints(goal="throughput", model="gpt-oss-120b", installed=NATIVE)
    (note,) = survey(PROFILES, parse_hardware("h200"), wish).notes
    assert note.startswith("gpt-oss-120b/tensorrt_llm-h200-mxfp4-tp1-pp1-throughput would come fi")
    assert "6,868 tok/s" in note
    assert note.endswith("but engine tensorrt_llm is not installed: no adapter.")
    # On an H100 what is installed is the faster one.
    assert survey(PROFILES, parse_hardware("h100"), wish).notes == ()


def test_rivals_differ_in_engine_gpus_and_model() -> None:
    selection = survey(PROFILES, parse_hardware("b200x8"), Constraints(installed=ALL))
    first, *rivals = [selection.chosen.profile, *(r.profile for r in selection.rivals)]
    assert [rival.engine for rival in rivals] == ["vllm", "tensorrt_llm", "tensorrt_llm"]
    assert rivals[1].num_devices != first.num_devices
    assert rivals[2].model.name == "gpt-oss-20b"
    assert selection.rivals[2].reason == "it serves the larger model"
    assert f"comes before {rivals[0].title} because tensorrt_llm comes fir" in selection.reason


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
    asked = surveyed("h200", tags={"speculation": "eagle3"}).chosen.profile
    assert asked.name == "vllm-h200-mxfp4-tp1-pp1-latency-eagle3"
    assert surveyed("h200", profile=asked.name).chosen.profile is asked


def surveyed(hardware: str, **wishes: Any) -> Selection:
    return survey(PROFILES, parse_hardware(hardware), Constraints(installed=ALL, **wishes))


def refusal_of(machine: Hardware, wish: Constraints) -> NoCompatibleProfile:
    with pytest.raises(NoCompatibleProfile) as caught:
        select(PROFILES, machine, wish)
    lines = str(caught.value).splitlines()
    assert len(lines) <= 15
    assert lines[1].startswith("None of the ")
    assert set(caught.value.reasons) == {profile.title for profile in PROFILES}
    return caught.value


def test_a_refusal_starts_with_the_remedy_and_then_the_model_that_was_asked_for() -> None:
    wish = Constraints(model="gpt-oss-120b", installed=ALL)
    lines = str(refusal_of(parse_hardware("l4:ram=32gb"), wish)).splitlines()
    assert lines[0] == (
        "Unset NIM_MODEL_NAME or NIM_MODEL_PATH (gpt-oss-120b) to serve gpt-oss-20b, "
        "which can run here."
    )
    assert lines[2].startswith("  1 profile of gpt-oss-120b: needs 73.9 GB (63.2 GB wei")
    assert lines[-2].startswith("  not asked for: ")


def test_a_refusal_puts_equal_reasons_together() -> None:
    wish = Constraints(model="gpt-oss-20b", engine="vllm", installed={"native": None})
    text = str(refusal_of(parse_hardware("cpu"), wish))
    assert text.count("found none") == 1
    assert "No engine of this release can run what was asked for" in text.splitlines()[0]


def test_a_refusal_names_the_context_that_would_fit() -> None:
    wish = Constraints(model="gpt-oss-20b", max_model_len=131_072, installed=GPU_SERVERS)
    text = str(refusal_of(with_free("l4", 20), wish))
    assert text.startswith("Set NIM_MAX_MODEL_LEN=")
    assert ": gpt-oss-20b/vllm" in text.splitlines()[0]


def test_a_machine_without_memory_cannot_even_run_nano() -> None:
    tiny = Hardware(Cpu("tiny", 1, GB // 2, GB // 2), no_gpu_reason="none")
    text = str(refusal_of(tiny, Constraints(installed=ALL)))
    assert text.startswith("Free memory, or add some: nano needs 1.3 GB")
    assert "found 0.5 GB usable of the machine's memory" in text.splitlines()[0]


@pytest.mark.parametrize(
    ("wish", "complaint"),
    [
        (Constraints(model="gpt-oss-12b"), r"model 'gpt-oss-12b' .*did you mean 'gpt-oss-120b'"),
        (Constraints(engine="vlm"), r"engine 'vlm' .*did you mean 'vllm'"),
        (Constraints(profile="f" * 64), r"profile 'f{64}' is not in the catalogue.*harmonium pro"),
        (Constraints(profile="vllm-mxfp4-tp3-pp1"), r"did you mean 'vllm-mxfp4-tp"),
        (Constraints(tags={"tpp": "2"}), r"tag 'tpp' .*did you mean 'tp'"),
        (Constraints(max_model_len=0), r"max_model_len 0 must be at least 1"),
    ],
)
def test_a_wish_for_what_does_not_exist_names_the_nearest(
    wish: Constraints, complaint: str
) -> None:
    with pytest.raises(InvalidConstraint, match=complaint):
        survey(PROFILES, parse_hardware("h200"), wish)


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
        "No profile of nano that can run here is made for latency; this one is made for balance.",
    )


def ranked(*profiles: Profile, hardware: str = "h200x8", **wishes: object) -> list[str]:
    constraints = Constraints(**wishes)  # type: ignore[arg-type]
    selection = survey(profiles, parse_hardware(hardware), constraints)
    return [candidate.profile.title for candidate in selection.compatible]


def test_tuned_comes_before_published_before_untuned(catalogue: Catalogue) -> None:
    first = next(p for p in PROFILES if p.name == "vllm-hopper-mxfp4-tp2-pp1-balanced")
    titles = []
    for status, fraction in (("untuned", 0.7), ("tuned", 0.8), ("published", 0.9)):
        update = {"status": status, "memory_fraction": fraction, "engine": "vllm"}
        titles.append(first.model_copy(update=update))
    selection = survey(titles, parse_hardware("h200x2"), Constraints())
    assert [c.profile.status for c in selection.compatible] == ["tuned", "published", "untuned"]
    assert "its values are better proven" in selection.reason


def test_throughput_takes_fewer_gpus_and_latency_more() -> None:
    for engine in ("tensorrt_llm", "vllm"):
        wishes = {"engine": engine, "model": "gpt-oss-120b"}
        for goal, split in (("throughput", "tp1"), ("balanced", "tp1"), ("latency", "tp8")):
            assert f"-{split}-" in ranked(*PROFILES, goal=goal, **wishes)[0]


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


def test_an_engine_built_for_the_cpu_only_is_not_chosen_for_a_gpu() -> None:
    cpu_only = {"native": "here for the CPU only: PyTorch is its CPU build"}
    wish = Constraints(installed=NATIVE, cpu_only=cpu_only)
    selection = survey(PROFILES, parse_hardware("h100"), wish)
    assert selection.chosen.profile.gpu is None
    assert any(cpu_only["native"] in r.missing_engine for r in selection.rejections)
    assert survey(PROFILES, parse_hardware("h100"), replace(wish, cpu_only={})).chosen.profile.gpu
    with pytest.raises(NoCompatibleProfile, match=r"^Install what its GPU needs: engine native is"):
        select(PROFILES, parse_hardware("h100"), replace(wish, model="gpt-oss-20b"))
