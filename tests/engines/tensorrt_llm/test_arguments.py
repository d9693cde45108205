"""Every field of a spec reaches TensorRT-LLM or is refused, and each call fits its source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines.errors import EngineStartError
from engines.spec import EngineSpec
from engines.tensorrt_llm.arguments import GROUPS, arguments_of
from engines.tensorrt_llm.drafts import decoding_config
from engines.tensorrt_llm.engine import _grouped
from profiles.catalogue import catalogue
from service.run.startup import spec_of
from tests.engines.guest.refusals import REFUSED_BY_ALL, Row, untested_fields
from tests.engines.tensorrt_llm.stand_in import SURFACE, Plan, TorchLlmArgs

SPEC = EngineSpec("tensorrt_llm", model_dir="/model", num_devices=4, tensor_parallel=4)
DRAFTS = {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model_dir": "/draft"}

TAKEN: list[Row] = [
    ({"options": {"stream_interval": 20}}, {"stream_interval": 20}),
    ({"options": {"disable_overlap_scheduler": True}}, {"disable_overlap_scheduler": True}),
    ({"options": {"enable_chunked_prefill": True}}, {"enable_chunked_prefill": True}),
    ({"options": {"cuda_graph_config": None}}, {"cuda_graph_config": None}),
    ({"options": {"moe_config": {"backend": "TRITON"}}}, {"moe_config": {"backend": "TRITON"}}),
    ({"limits": {"max_model_len": 9, "max_num_seqs": 3}}, {"max_seq_len": 9, "max_batch_size": 3}),
    ({"limits": {"max_num_batched_tokens": 64}}, {"max_num_tokens": 64}),
    ({"model_dir": "/other"}, {"model": "/other"}),
    ({"precision": "mxfp4"}, {"dtype": "bfloat16"}),
    ({"kv_dtype": "bf16"}, {"kv_cache_config": {"dtype": "auto"}}),
    (
        {
            "kv_dtype": "fp8",
            "memory_fraction": 0.5,
            "options": {"kv_cache_config": {"dtype": "fp8", "enable_block_reuse": False}},
        },
        {
            "kv_cache_config": {
                "dtype": "fp8",
                "free_gpu_memory_fraction": 0.5,
                "enable_block_reuse": False,
            }
        },
    ),
    (
        {"tensor_parallel": 4, "expert_parallel": 2},
        {
            "tensor_parallel_size": 4,
            "moe_expert_parallel_size": 2,
            "moe_tensor_parallel_size": 2,
        },
    ),
    (
        {"tensor_parallel": 2, "pipeline_parallel": 2},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "moe_expert_parallel_size": 1},
    ),
    ({"attention_dp": True}, {"enable_attention_dp": True, "tensor_parallel_size": 4}),
    (
        {"options": {"speculative_config": DRAFTS}},
        {
            "speculative_config": {"max_draft_len": 3, "speculative_model_dir": "/draft"},
        },
    ),
]
REFUSED: list[Row] = [
    *REFUSED_BY_ALL,
    ({"precision": "fp32"}, "precision is 'fp32'; TensorRT-LLM is given mxfp4, bf16"),
    ({"num_devices": 0, "tensor_parallel": 1}, "num_devices is 0; TensorRT-LLM runs on GPUs only"),
    ({"expert_parallel": 3}, "expert_parallel is 3; it must divide tensor_parallel, 4"),
    ({"options": {"num_postprocess_workers": 4}}, "num_postprocess_workers"),
    ({"options": {"enable_chunked_prefill": False}}, "enable_chunked_prefill"),
    ({"kv_dtype": "bf16", "options": {"kv_cache_config": {"dtype": "fp8"}}}, "'dtype' is 'fp8'"),
    ({"options": {"speculative_config": {"decoding_type": "MTP"}}}, "decoding_type is 'MTP'"),
    (
        {"options": {"speculative_config": {"decoding_type": "Eagle", "max_draft_len": 3}}},
        "speculative_model_dir is missing",
    ),
    (
        {"options": {"speculative_config": {**DRAFTS, "eagle3_one_model": True}}},
        "leave it out",
    ),
]


@pytest.mark.parametrize(("fields_", "expected"), TAKEN, ids=lambda v: str(v)[:40])
def test_what_it_can_do_reaches_tensorrt_llm(
    fields_: dict[str, Any], expected: dict[str, Any]
) -> None:
    arguments = arguments_of(replace(SPEC, **fields_))
    assert expected.items() <= arguments.engine.items()
    assert arguments.engine.keys() <= SURFACE["classes"]["TorchLlmArgs"].keys()
    assert arguments.num_ranks == (4 if "attention_dp" in fields_ else 1)
    assert arguments.max_drafts == (3 if "speculative_config" in expected else 0)


@pytest.mark.parametrize(("fields_", "reason"), REFUSED, ids=lambda v: str(v)[:40])
def test_what_it_cannot_do_is_named(fields_: dict[str, Any], reason: str) -> None:
    with pytest.raises(EngineStartError, match=reason):
        arguments_of(replace(SPEC, **fields_))


def test_no_field_of_a_spec_is_missing_here() -> None:
    assert not untested_fields([*TAKEN, *REFUSED])


def test_every_profile_of_the_catalogue_is_one_that_it_can_be_given(library: Plan) -> None:
    profiles = [p for p in catalogue.load().profiles if p.engine == "tensorrt_llm"]
    assert len(profiles) > 20
    for profile in profiles:
        arguments = arguments_of(spec_of(profile, profile.limits, Path("/model")))
        for name, value in arguments.engine.items():
            _grouped(name, value)  # the class of the stand-in refuses what its source has not
        TorchLlmArgs(**{n: _grouped(n, v) for n, v in arguments.engine.items()})
        assert arguments.max_drafts == (3 if profile.draft else 0)


def test_a_wrong_name_or_value_in_a_group_is_named(library: Plan) -> None:
    for group in ({"backend": "TURBO"}, {"backends": "TRITON"}):
        with pytest.raises(EngineStartError, match=r"option 'moe_config': .*backend"):
            _grouped("moe_config", group)


def test_groups_are_what_the_source_has_as_classes() -> None:
    known = SURFACE["classes"]["TorchLlmArgs"]
    assert {name: has["class"] for name, has in known.items() if "class" in has} == {
        **GROUPS,
        "speculative_config": "EagleDecodingConfig",
    }
    assert {*GROUPS.values()} <= {*SURFACE["exports"]["tensorrt_llm.llmapi"]}


def release(name: str, *fields: str) -> SimpleNamespace:
    """A release's llmapi, by the class that EAGLE3's options have there."""

    def __init__(self: Any, **given: Any) -> None:
        assert given.keys() <= {*fields}
        self.given = given

    made = type(name, (), {"__init__": __init__, "model_fields": dict.fromkeys(fields)})
    return SimpleNamespace(**{name: made})


GROUP = {"max_draft_len": 3, "speculative_model_dir": "/draft"}


@pytest.mark.parametrize(
    ("llmapi", "expected"),
    [
        (
            release(
                "EagleDecodingConfig", "max_draft_len", "speculative_model_dir", "eagle3_one_model"
            ),
            {"speculative_model_dir": "/draft", "eagle3_one_model": False},
        ),
        (
            release(
                "EagleDecodingConfig", "max_draft_len", "speculative_model", "eagle3_one_model"
            ),
            {"speculative_model": "/draft", "eagle3_one_model": False},
        ),
        (
            release(
                "Eagle3DecodingConfig",
                *("max_draft_len", "speculative_model", "eagle3_one_model"),
                "allow_advanced_sampling",
            ),
            {
                "speculative_model": "/draft",
                "eagle3_one_model": True,
                "allow_advanced_sampling": True,
            },
        ),
        (
            release(
                "Eagle3DecodingConfig",
                *("max_draft_len", "speculative_model", "allow_advanced_sampling"),
            ),
            {"speculative_model": "/draft", "allow_advanced_sampling": True},
        ),
    ],
    ids=["1.2 candidates", "1.2.1", "late 1.3", "1.4"],
)
def test_drafts_are_asked_for_by_the_names_of_the_release(
    llmapi: SimpleNamespace, expected: dict[str, Any]
) -> None:
    assert decoding_config(llmapi, GROUP).given == {"max_draft_len": 3, **expected}


def test_a_release_that_drafts_greedily_is_refused() -> None:
    with pytest.raises(EngineStartError, match="greedily whatever the temperature"):
        decoding_config(release("EagleDecodingConfig", "max_draft_len", "speculative_model"), GROUP)
    with pytest.raises(EngineStartError, match="no option for the model that drafts"):
        decoding_config(release("EagleDecodingConfig", "max_draft_len"), GROUP)
