"""The memory formula against the published sizes of the checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engines.native.backends.cpu import layers
from engines.native.backends.cpu.memory import held_bytes
from engines.native.config import ModelConfig
from profiles.catalogue.catalogue import DATA_DIR, Catalogue
from profiles.catalogue.engines import known_engines
from profiles.catalogue.models import DraftShape, Limits, Parallelism, Profile
from profiles.catalogue.parameters import (
    attention_parameters,
    draft_parameters,
    expert_parameters,
    num_parameters,
)
from profiles.hardware.machine import GB
from profiles.selection.memory import CPU_WORKSPACE_BYTES, memory_need


def profile_of(catalogue: Catalogue, model: str, **changes: object) -> Profile:
    """A profile of the native engine, which holds the weights as they are published."""
    plain = "native-h100-mxfp4-tp1-pp1-throughput"
    found = next(p for p in catalogue.profiles if p.title == f"{model}/{plain}")
    return found.model_copy(update=changes)


@pytest.mark.parametrize(
    ("model", "parameters", "weights_gb", "kv_bytes", "window_bytes"),
    [
        ("gpt-oss-20b", 20.915e9, 13.76, 24_576, 3_145_728),
        ("gpt-oss-120b", 116.83e9, 65.25, 36_864, 4_718_592),
    ],
)
def test_one_gpu(
    catalogue: Catalogue,
    model: str,
    parameters: float,
    weights_gb: float,
    kv_bytes: int,
    window_bytes: int,
) -> None:
    profile = profile_of(catalogue, model)
    need = memory_need(profile)
    assert num_parameters(profile.model.shape) == pytest.approx(parameters, rel=1e-4)
    assert need.weights_bytes / GB == pytest.approx(weights_gb, abs=0.005)
    assert (need.kv_bytes_per_token, need.kv_bytes_per_sequence) == (kv_bytes, window_bytes)


def test_the_formula_agrees_with_the_files_of_the_checkpoints(catalogue: Catalogue) -> None:
    for name in ("gpt-oss-20b", "gpt-oss-120b"):
        artifacts = catalogue.models[name].artifacts
        assert artifacts is not None
        shards = sum(f.size_bytes for f in artifacts.files if f.name.endswith(".safetensors"))
        need = memory_need(profile_of(catalogue, name))
        assert need.weights_bytes == pytest.approx(shards, rel=1e-4)


def test_one_layer(catalogue: Catalogue) -> None:
    shape = catalogue.models["gpt-oss-20b"].shape
    assert attention_parameters(shape) * 2 == pytest.approx(53.11e6, rel=1e-3)
    weights, biases = expert_parameters(shape)
    assert weights * 4.25 / 8 + biases * 2 == pytest.approx(13.236e6, rel=1e-3)


@pytest.mark.parametrize(
    ("gigabytes", "tokens_20b", "tokens_120b"),
    [
        (24, 156_000, 0),
        (40, 742_000, 0),
        (48, 1_040_000, 0),
        (80, 2_210_000, 75_000),
        (96, 2_790_000, 465_000),
        (141, 4_440_000, 1_560_000),
        (180, 5_870_000, 2_520_000),
    ],
)
def test_tokens_that_fit_nine_tenths_of_a_gpu_beside_4_gb_of_workspace(
    catalogue: Catalogue, gigabytes: int, tokens_20b: int, tokens_120b: int
) -> None:
    budget = gigabytes * GB * 9 // 10
    for model, tokens in (("gpt-oss-20b", tokens_20b), ("gpt-oss-120b", tokens_120b)):
        need = replace(memory_need(profile_of(catalogue, model)), workspace_bytes=4 * GB)
        assert need.num_tokens(budget) == pytest.approx(tokens, rel=0.01)
        assert need.total_bytes(need.num_tokens(budget)) <= max(budget, need.total_bytes(0))


@pytest.mark.parametrize(
    ("engine", "gigabytes", "source"),
    [
        ("vllm", 64.38 * 1.073741824, "vllm issue 33155: model loading took 64.38 GiB"),
        ("llama_cpp", 59.02 * 1.073741824, "llama.cpp issue 15253: file size = 59.02 GiB"),
        ("native", 65.25, "the published files"),
    ],
)
def test_weights_are_as_large_as_each_engine_was_seen_to_make_them(
    catalogue: Catalogue, engine: str, gigabytes: float, source: str
) -> None:
    need = memory_need(profile_of(catalogue, "gpt-oss-120b", engine=engine))
    assert need.weights_bytes / GB == pytest.approx(gigabytes, rel=0.005), source


def test_workspace_is_what_an_h100_was_seen_to_need_and_less_for_smaller_steps(
    catalogue: Catalogue,
) -> None:
    large = profile_of(catalogue, "gpt-oss-120b")
    # 80.8 GB held with 5,409 blocks of 64 tokens.
    kv = 5409 * 64 * 36_864
    seen = 80.8e9 - memory_need(large).weights_bytes - kv
    wide = large.limits.model_copy(update={"max_num_seqs": 256})
    measured = memory_need(large.model_copy(update={"limits": wide})).workspace_bytes
    assert measured == pytest.approx(seen, rel=0.1)
    limits = Limits(max_model_len=131072, max_num_seqs=8, max_num_batched_tokens=2048)
    small = profile_of(catalogue, "gpt-oss-120b", limits=limits)
    assert memory_need(small).workspace_bytes < 1.3 * GB
    # Several GPUs split activations and need buffers to talk.
    split = profile_of(catalogue, "gpt-oss-120b", parallelism=Parallelism(tp=2))
    assert memory_need(split).workspace_bytes != memory_need(large).workspace_bytes
    # llama.cpp has buffers of one size.
    ours = profile_of(catalogue, "gpt-oss-120b", engine="llama_cpp")
    assert memory_need(ours).workspace_bytes == known_engines()["llama_cpp"].base_bytes


def test_tensor_parallel_splits_everything_but_the_router_and_the_embedding(
    catalogue: Catalogue,
) -> None:
    """The GPU that has the embedding needs the most."""
    one = memory_need(profile_of(catalogue, "gpt-oss-120b"))
    split = profile_of(catalogue, "gpt-oss-120b", parallelism=Parallelism(tp=4, ep=4))
    four = memory_need(split)
    whole_bytes = 36 * 2 * 2881 * 128 + 2 * 201_088 * 2880
    assert four.weights_bytes * 4 == pytest.approx(one.weights_bytes + 3 * whole_bytes, rel=1e-4)
    assert four.kv_bytes_per_token * 4 == one.kv_bytes_per_token


def test_more_gpus_than_kv_heads_repeat_a_head(catalogue: Catalogue) -> None:
    split = profile_of(catalogue, "gpt-oss-20b", parallelism=Parallelism(tp=16))
    assert memory_need(split).kv_bytes_per_token == 24_576 // 8


def test_attention_data_parallel_keeps_attention_and_kv_whole(catalogue: Catalogue) -> None:
    one = memory_need(profile_of(catalogue, "gpt-oss-120b"))
    parallelism = Parallelism(tp=2, ep=2, attention_dp=True)
    two = memory_need(profile_of(catalogue, "gpt-oss-120b", parallelism=parallelism))
    experts = 36 * 128 * 13.236e6
    assert two.weights_bytes == pytest.approx(one.weights_bytes - experts / 2, rel=1e-3)
    assert two.kv_bytes_per_token == one.kv_bytes_per_token


def test_pipeline_stages_share_the_layers_and_the_vocabulary(catalogue: Catalogue) -> None:
    one = memory_need(profile_of(catalogue, "gpt-oss-20b"))
    two = memory_need(profile_of(catalogue, "gpt-oss-20b", parallelism=Parallelism(pp=2)))
    assert two.weights_bytes == pytest.approx(one.weights_bytes / 2, rel=1e-4)
    assert two.kv_bytes_per_token * 2 == one.kv_bytes_per_token


def test_fewer_bits_need_fewer_bytes(catalogue: Catalogue) -> None:
    packed, bf16, fp32 = (
        memory_need(profile_of(catalogue, "gpt-oss-20b", precision=precision)).weights_bytes
        for precision in ("mxfp4", "bf16", "fp32")
    )
    assert bf16 == pytest.approx(20.915e9 * 2, rel=1e-4)
    assert fp32 == 2 * bf16
    assert packed < bf16
    half = memory_need(profile_of(catalogue, "gpt-oss-20b", kv_dtype="fp8"))
    assert half.kv_bytes_per_token == 24_576 // 2


def test_a_gpu_with_a_part_of_the_layers_leaves_the_rest_to_the_host(catalogue: Catalogue) -> None:
    whole = memory_need(profile_of(catalogue, "gpt-oss-20b", engine="llama_cpp"))
    half = memory_need(
        profile_of(catalogue, "gpt-oss-20b", engine="llama_cpp", options={"gpu_layers": 12})
    )
    kv_of_the_rest = (whole.kv_bytes_per_token - half.kv_bytes_per_token) * 131_072
    # The output is one of the twelve.
    assert half.kv_bytes_per_token * 24 == whole.kv_bytes_per_token * 11
    assert half.weights_bytes / GB == pytest.approx(5.58, abs=0.02)
    there = half.weights_bytes + half.host_bytes - CPU_WORKSPACE_BYTES - kv_of_the_rest
    assert there == whole.weights_bytes
    assert whole.host_bytes == 0


def test_a_head_is_counted_as_its_published_tensors(catalogue: Catalogue) -> None:
    hidden, inner, d, q, kv, rows = 32, 48, 12, 4, 2, 30
    published = {
        "fc": hidden * 3 * hidden,
        "norm": hidden,
        "lm_head": rows * hidden,
        "midlayer.input_layernorm": hidden,
        "midlayer.hidden_norm": hidden,
        "midlayer.post_attention_layernorm": hidden,
        "midlayer.self_attn.q_proj": q * d * 2 * hidden,
        "midlayer.self_attn.k_proj": kv * d * 2 * hidden,
        "midlayer.self_attn.v_proj": kv * d * 2 * hidden,
        "midlayer.self_attn.o_proj": hidden * q * d,
        "midlayer.mlp.gate_proj": inner * hidden,
        "midlayer.mlp.up_proj": inner * hidden,
        "midlayer.mlp.down_proj": hidden * inner,
    }
    shape = catalogue.models["gpt-oss-20b"].shape.model_copy(update={"hidden_size": hidden})
    head = DraftShape(
        intermediate_size=inner, num_attention_heads=q, num_key_value_heads=kv, head_dim=d,
        draft_vocab_size=rows,
    )  # fmt: skip
    assert draft_parameters(shape, head) == sum(published.values())


def test_a_profile_with_a_head_needs_its_weights_and_its_layers_kv_too(
    catalogue: Catalogue,
) -> None:
    name = "vllm-h200-mxfp4-tp1-pp1-latency-eagle3"
    drafting = next(p for p in catalogue.profiles if p.name == name)
    plain = drafting.model_copy(update={"draft": "", "draft_revision": ""})
    need, without = memory_need(drafting), memory_need(plain)
    assert need.draft_bytes == need.weights_bytes - without.weights_bytes
    assert need.draft_bytes / GB == pytest.approx(1.57, abs=0.01)
    assert need.kv_bytes_per_token - without.kv_bytes_per_token == 2 * 8 * 64 * 2
    assert need.workspace_bytes > without.workspace_bytes


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        {"num_local_experts": 64, "intermediate_size": 64},
        {"hidden_size": 256},
        {"hidden_size": 256, "vocab_size": 20_000},
        {"hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64},
        {"hidden_size": 1024, "intermediate_size": 1024, "num_local_experts": 4},
        {"vocab_size": 100_000},
        {"vocab_size": 20_000},
    ],
    ids=str,
)
def test_on_a_cpu_the_native_engine_holds_what_is_counted(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int]
) -> None:
    monkeypatch.setattr(layers, "can_pack", lambda dtype: True)
    published = ModelConfig.from_dir(DATA_DIR / "nano")
    held = held_bytes(replace(published, **changes), torch.float32)  # type: ignore[arg-type]
    nano = next(p for p in catalogue.profiles if p.name == "native-cpu-fp32-tp1-pp1-balanced")
    shape = nano.model.shape.model_copy(update=changes)
    profile = nano.model_copy(update={"model": nano.model.model_copy(update={"shape": shape})})
    assert memory_need(profile).weights_bytes == held
