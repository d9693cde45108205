"""Every field of a spec reaches vLLM or is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.errors import EngineStartError
from engines.spec import EngineSpec, check_names
from engines.vllm.arguments import arguments_of
from profiles.catalogue import catalogue
from service.run.startup import spec_of
from tests.engines.guest.refusals import REFUSED_BY_ALL, Row, untested_fields
from tests.engines.vllm import surface
from tests.engines.vllm.conftest import SURFACE

SPEC = EngineSpec("vllm", model_dir="/model", num_devices=4, tensor_parallel=4)

TAKEN: list[Row] = [
    ({"options": {"seed": 7}}, {"seed": 7}),
    ({"limits": {"max_model_len": 9, "max_num_seqs": 3}}, {"max_model_len": 9, "max_num_seqs": 3}),
    ({"limits": {"max_num_batched_tokens": 64}}, {"max_num_batched_tokens": 64}),
    ({"model_dir": "/other"}, {"model": "/other"}),
    ({"precision": "mxfp4"}, {"dtype": "bfloat16"}),
    ({"precision": "fp32", "kv_dtype": "fp32"}, {"dtype": "float32", "kv_cache_dtype": "auto"}),
    ({"precision": "bf16", "kv_dtype": "bf16"}, {"dtype": "bfloat16", "kv_cache_dtype": "auto"}),
    ({"kv_dtype": "fp8", "options": {"kv_cache_dtype": "fp8"}}, {"kv_cache_dtype": "fp8"}),
    ({"memory_fraction": 0.5}, {"gpu_memory_utilization": 0.5}),
    ({"tensor_parallel": 4}, {"tensor_parallel_size": 4}),
    (
        {"tensor_parallel": 2, "pipeline_parallel": 2},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    ),
    ({"expert_parallel": 4}, {"enable_expert_parallel": True}),
    ({"attention_dp": True}, {"data_parallel_size": 4}),
    (
        {"options": {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}}},
        {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}},
    ),
]
REFUSED: list[Row] = [
    *REFUSED_BY_ALL,
    ({"precision": "fp8"}, "precision is 'fp8'"),
    ({"precision": "bf16", "kv_dtype": "fp32"}, "kv_dtype is 'fp32'"),
    ({"expert_parallel": 2}, "expert_parallel is 2"),
    ({"options": {"scheduling_policy": "fcfs"}}, "'priority'"),
    ({"kv_dtype": "bf16", "options": {"kv_cache_dtype": "fp8"}}, "kv_cache_dtype"),
]


@pytest.mark.parametrize(("fields_", "expected"), TAKEN, ids=lambda v: str(v)[:40])
def test_what_it_can_do_reaches_vllm(fields_: dict[str, Any], expected: dict[str, Any]) -> None:
    arguments = arguments_of(replace(SPEC, **fields_))
    assert expected.items() <= arguments.engine.items()
    assert arguments.engine.keys() <= {*SURFACE["AsyncEngineArgs"]}
    assert arguments.num_ranks == (4 if "attention_dp" in fields_ else 1)


@pytest.mark.parametrize(("fields_", "reason"), REFUSED, ids=lambda v: str(v)[:40])
def test_what_it_cannot_do_is_named(fields_: dict[str, Any], reason: str) -> None:
    with pytest.raises(EngineStartError, match=reason):
        arguments_of(replace(SPEC, **fields_))


def test_no_field_of_a_spec_is_missing_here() -> None:
    assert not untested_fields([*TAKEN, *REFUSED])


@pytest.mark.parametrize("where", ["limits", "options"])
def test_the_queue_and_the_vocabulary_are_not_vllms(where: str) -> None:
    spec = replace(SPEC, vocabulary_path="/vocabulary")
    assert arguments_of(spec).max_num_waiting is None
    given: dict[str, Any] = {where: {"max_num_waiting": 5}}
    arguments = arguments_of(replace(spec, **given))
    assert (arguments.max_num_waiting, arguments.vocabulary_path) == (5, Path("/vocabulary"))
    assert "max_num_waiting" not in arguments.engine


def test_every_profile_of_the_catalogue_is_one_that_vllm_can_be_given() -> None:
    profiles = [p for p in catalogue.load().profiles if p.engine == "vllm"]
    assert len(profiles) > 20
    for profile in profiles:
        arguments = arguments_of(spec_of(profile, profile.limits, Path("/model")))
        check_names("option", arguments.engine, SURFACE["AsyncEngineArgs"])
        assert arguments.is_gpu == (profile.gpu is not None)


def test_every_value_and_variable_of_a_profile_is_one_that_vllm_knows() -> None:
    """vLLM passes over a variable that it lacks, and takes any word as `moe_backend`."""
    known = surface.FILE.read_text(encoding="utf-8")
    values, environment = (json.loads(known)[key] for key in ("values", "environment"))
    assert "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8" not in environment
    seen = set()
    for profile in (p for p in catalogue.load().profiles if p.engine == "vllm"):
        for name in profile.environment:
            assert name in environment or not name.startswith("VLLM_"), (profile.title, name)
        options = {**profile.options}
        drafts = options.pop("speculative_config", {})
        options |= {f"speculative_config.{name}": value for name, value in drafts.items()}
        for name in options.keys() & values.keys():
            assert options[name] in values[name], (profile.title, name)
            seen.add(name)
    assert seen == values.keys()


@pytest.mark.slow
def test_what_is_known_of_vllm_is_what_its_wheels_have(tmp_path: Path) -> None:
    """Fetches a gigabyte: the wheels of every version that is supported."""
    versions = json.loads(surface.FILE.read_text(encoding="utf-8"))["versions"]
    wheels = []
    for version in versions:
        folder = tmp_path / version
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", str(folder), f"vllm=={version}"]
        subprocess.run(command, check=True)
        wheels += [str(wheel) for wheel in folder.glob("*.whl")]
    assert surface.main(["--check", *wheels]) == 0


def test_an_option_that_vllm_does_not_have_is_named() -> None:
    with pytest.raises(
        EngineStartError, match=r"vLLM 1 option 'block_sise' is unknown; .*'block_size'"
    ):
        check_names("vLLM 1 option", {"block_sise": 16}, ["block_size", "seed"])
