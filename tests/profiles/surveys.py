"""What the shipped catalogue offers a machine that is written down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from profiles.catalogue.catalogue import load
from profiles.hardware.machine import GB, Hardware
from profiles.hardware.written import parse_hardware
from profiles.selection.selector import survey
from profiles.selection.verdicts import Candidate, Constraints, Selection

ALL = {"native": None, "vllm": None, "tensorrt_llm": None, "llama_cpp": None}
GPU_SERVERS = {name: None for name in ALL if name != "llama_cpp"}
NATIVE = {
    "native": None,
    "vllm": "not installed: the library is missing",
    "tensorrt_llm": "not installed: no adapter",
    "llama_cpp": "not installed: the library is missing",
}
PROFILES = load().profiles


def chosen_on(hardware: str, **wishes: Any) -> Candidate:
    wish = Constraints(**{"installed": ALL, **wishes})
    return survey(PROFILES, parse_hardware(hardware), wish).chosen


def surveyed(hardware: str, **wishes: Any) -> Selection:
    return survey(PROFILES, parse_hardware(hardware), Constraints(installed=ALL, **wishes))


def reason_for(title: str, hardware: str | Hardware, **wishes: object) -> str:
    machine = parse_hardware(hardware) if isinstance(hardware, str) else hardware
    constraints = Constraints(**{"installed": ALL, **wishes})  # type: ignore[arg-type]
    selection = survey(PROFILES, machine, constraints)
    return next(r.reason for r in selection.rejections if r.profile.title == title)


def with_free(hardware: str, *free_gb: float) -> Hardware:
    machine = parse_hardware(hardware)
    pairs = zip(machine.gpus, free_gb, strict=True)
    return replace(
        machine, gpus=tuple(replace(gpu, free_bytes=int(free * GB)) for gpu, free in pairs)
    )
