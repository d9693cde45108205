"""What the headers of shards say of the weights, against what config.json says."""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path
from typing import Any

import pytest

from profiles.catalogue.catalogue import Catalogue
from profiles.catalogue.models import Profile
from profiles.checkpoints.checkpoint import Checkpoint
from profiles.errors import ModelStoreError, NoCompatibleProfile
from profiles.hardware.written import parse_hardware
from profiles.selection.memory import memory_need
from profiles.selection.selector import select
from profiles.selection.verdicts import Constraints
from profiles.store.custom_shape import ResolvedModel, find

EXPERTS = "model.layers.0.mlp.experts."
BITS = {"F32": 32, "BF16": 16, "F16": 16, "U8": 8, "I32": 32, "F8_E4M3": 8}
Tensors = dict[str, tuple[str, list[int]]]


def header(tensors: Tensors) -> bytes:
    """The head of a safetensors file: its tensors are nowhere."""
    entries, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = at + prod(shape) * BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


def tensors_of(shape: dict[str, Any], dtype: str = "BF16", **changes: Any) -> Tensors:
    """Those that the tests look at; experts of every layer in this dtype, or MXFP4."""
    hidden, inner, experts = (
        shape[key] for key in ("hidden_size", "intermediate_size", "num_local_experts")
    )
    found: Tensors = {"model.embed_tokens.weight": ("BF16", [shape["vocab_size"], hidden])}
    if not changes.get("is_tied"):
        found["lm_head.weight"] = ("BF16", [shape["vocab_size"], hidden])
    for layer in range(shape["num_hidden_layers"]):
        start = f"model.layers.{layer}."
        found[f"{start}self_attn.sinks"] = ("BF16", [64])
        for name, num_in, num_out in (
            ("gate_up_proj", hidden, 2 * inner),
            ("down_proj", inner, hidden),
        ):
            if dtype == "MXFP4":
                groups = [experts, num_out, num_in // 32]
                found[f"{start}mlp.experts.{name}_blocks"] = ("U8", [*groups, 16])
                found[f"{start}mlp.experts.{name}_scales"] = ("U8", groups)
            else:
                found[f"{start}mlp.experts.{name}"] = (dtype, [experts, num_in, num_out])
    return found


def write(folder: Path, config: dict[str, Any], tensors: Tensors) -> Checkpoint:
    """A checkpoint of which only the header is there."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt_oss", **config}))
    (folder / "model.safetensors").write_bytes(header(tensors))
    return Checkpoint.open(folder)


@pytest.fixture
def shape(catalogue: Catalogue) -> dict[str, Any]:
    return catalogue.models["gpt-oss-20b"].shape.model_dump()


def fine_tune(
    folder: Path, catalogue: Catalogue, shape: dict[str, Any], dtype: str
) -> ResolvedModel:
    return find(write(folder, shape, tensors_of(shape, dtype)), catalogue)


def chosen_on(hardware: str, found: ResolvedModel, **wishes: Any) -> Profile:
    wish = Constraints(model=found.model.name, **wishes)
    return select(found.profiles, parse_hardware(hardware), wish).chosen.profile


def test_the_files_decide_on_precision_and_memory(
    tmp_path: Path, catalogue: Catalogue, shape: dict[str, Any]
) -> None:
    found = fine_tune(tmp_path / "ft", catalogue, shape, "BF16")
    assert found.model.name == "gpt-oss-20b"
    assert "experts in bf16" in found.model.description
    served = chosen_on("h100", found, installed={"native": None})
    assert served.name == "native-h100-bf16-tp1-pp1-balanced"
    assert served.status == "untuned"
    assert "experts in bf16 as the checkpoint has them" in served.source
    stored = Checkpoint.open(tmp_path / "ft").stored()
    assert stored is not None
    # All but attention, norms and routers, which these files leave out: 3.3 % of the whole.
    assert stored.num_bytes == pytest.approx(memory_need(served).weights_bytes, rel=0.04)
    # As they are published: the catalogue's own profiles.
    packed = fine_tune(tmp_path / "mx", catalogue, shape, "MXFP4")
    assert packed.model == catalogue.models["gpt-oss-20b"]
    assert not any(p.is_rounded for p in packed.profiles)
    assert chosen_on("h100", packed, installed={"native": None}).precision == "mxfp4"


@pytest.mark.parametrize(
    ("engine", "hardware", "dropped"),
    [("vllm", "b200", "moe_backend"), ("tensorrt_llm", "b200", "moe_config"), ("vllm", "h100", "")],
)
def test_engines_that_take_weights_as_they_are_have_profiles_for_them(
    tmp_path: Path,
    catalogue: Catalogue,
    shape: dict[str, Any],
    engine: str,
    hardware: str,
    dropped: str,
) -> None:
    found = fine_tune(tmp_path / "ft", catalogue, shape, "BF16")
    served = chosen_on(hardware, found, engine=engine)
    assert (served.engine, served.precision) == (engine, "bf16")
    assert dropped not in served.options  # a kernel of MXFP4 experts


def test_what_does_not_fit_is_offered_rounded(
    tmp_path: Path, catalogue: Catalogue, shape: dict[str, Any]
) -> None:
    found = fine_tune(tmp_path / "ft", catalogue, shape, "BF16")
    with pytest.raises(NoCompatibleProfile) as caught:
        chosen_on("rtx4090", found)
    text = str(caught.value)
    assert text.startswith("Set NIM_QUANTIZE=mxfp4: it rounds the checkpoint's 16-bit experts")
    assert "takes 20.7 GB (13.8 GB weights) and runs on 1 x NVIDIA GeForce RTX 4090" in text
    assert "merge the fine-tune to MXFP4. As stored it needs 46.7 GB (41.8 GB weights" in text
    rounded = chosen_on("rtx4090", found, quantize="mxfp4")
    assert rounded.name == "native-ada-mxfp4-tp1-pp1-balanced-rounded"
    assert rounded.options["quantize"] == "mxfp4"
    assert "rounded to MXFP4" in rounded.source
    assert rounded.id not in {p.id for p in catalogue.profiles}
    # By name it is chosen without being asked for otherwise, as a profile with a draft head is.
    assert chosen_on("rtx4090", found, profile=rounded.name) == rounded
    with pytest.raises(NoCompatibleProfile, match=r"^Unset NIM_QUANTIZE \(mxfp4\) to serve"):
        chosen_on("h100", found, quantize="mxfp4", engine="vllm")
    # Four such cards hold them as they are, each some of the layers.
    assert chosen_on("rtx4090x4", found, engine="native").name.startswith("native-ada-bf16-tp1-pp4")


def test_a_shape_of_its_own_is_offered_the_gpu_that_rounding_makes_room_on(
    tmp_path: Path, catalogue: Catalogue, shape: dict[str, Any]
) -> None:
    own = shape | {"num_hidden_layers": 22}
    found = find(write(tmp_path / "cut", own, tensors_of(own)), catalogue)
    assert found.model.name == "cut"
    hardware = parse_hardware("rtx4090:ram=256gb")
    wish = Constraints(model="cut", installed={"native": None})
    selection = select(found.profiles, hardware, wish)
    assert selection.chosen.profile.gpu is None
    assert "With NIM_QUANTIZE=mxfp4 the 16-bit experts are rounded" in selection.notes[0]
    assert "they run on the GPU" in selection.notes[0]
    assert chosen_on("rtx4090", found, quantize="mxfp4").gpu is not None
    on_cpu = chosen_on("cpux16:ram=256gb", found, quantize="mxfp4")
    assert (on_cpu.precision, on_cpu.options["quantize"]) == ("fp32", "mxfp4")


@pytest.mark.parametrize(
    ("quantization", "tensor", "dtype", "name"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, None, "U8", r"NVFP4 \(modelopt\)"),
        ({"quant_method": "fp8"}, None, "F8_E4M3", "fp8"),
        ({"quant_method": "awq"}, None, "I32", "awq"),
        ({"quant_method": "gptq"}, None, "I32", "gptq"),
        ({"quant_method": "bitsandbytes"}, None, "U8", "bitsandbytes"),
        (
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
            None,
            "U8",
            r"nvfp4-pack-quantized \(compressed-tensors\)",
        ),
        ({}, None, "U8", "an unnamed format"),
        # config.json says nothing: the files do.
        (None, "0.gate_up_proj.weight_scale_2", "F32", "NVFP4"),
        (None, "0.gate_up_proj.weight", "F8_E4M3", "FP8"),
        (None, "0.gate_up_proj.qweight", "I32", "GPTQ or AWQ"),
        (None, "0.gate_up_proj.weight_packed", "U8", "compressed-tensors"),
        (None, "gate_up_proj.absmax", "F32", "bitsandbytes"),
        (None, "gate_up_proj", "I32", "I32"),
    ],
)
def test_formats_that_nothing_here_reads_are_refused_by_name(
    tmp_path: Path,
    catalogue: Catalogue,
    shape: dict[str, Any],
    quantization: dict[str, str] | None,
    tensor: str | None,
    dtype: str,
    name: str,
) -> None:
    tensors = tensors_of(shape)
    tensors[f"{EXPERTS}{tensor}" if tensor else f"{EXPERTS}0.weight"] = (dtype, [4, 8])
    config = shape if quantization is None else shape | {"quantization_config": quantization}
    opened = write(tmp_path / "q", config, tensors)
    words = (
        rf"config\.json: the weights are quantized as {name}; this server reads BF16.*MXFP4: ser"
    )
    with pytest.raises(ModelStoreError, match=words):
        find(opened, catalogue)


def test_a_config_that_another_checkpoint_left_behind_does_not_count(
    tmp_path: Path, catalogue: Catalogue, shape: dict[str, Any]
) -> None:
    """Merged weights beside the published config.json, and the reverse."""
    mxfp4 = shape | {"quantization_config": {"quant_method": "mxfp4"}}
    found = find(write(tmp_path / "merged", mxfp4, tensors_of(shape)), catalogue)
    assert chosen_on("h100", found, engine="native").precision == "bf16"
    found = find(write(tmp_path / "packed", shape, tensors_of(shape, "MXFP4")), catalogue)
    assert chosen_on("h100", found, engine="native").precision == "mxfp4"
    mixed = tensors_of(shape, "MXFP4") | {f"{EXPERTS}down_proj": ("BF16", [32, 2880, 2880])}
    found = find(write(tmp_path / "mixed", shape, mixed), catalogue)
    assert chosen_on("h100", found, engine="native").precision == "bf16"


@pytest.mark.parametrize("dtype", ["F16", "F32"])
def test_other_floats_are_computed_in_16_bits_on_a_gpu(
    tmp_path: Path, catalogue: Catalogue, shape: dict[str, Any], dtype: str
) -> None:
    assert chosen_on("h100", fine_tune(tmp_path / "f", catalogue, shape, dtype)).precision == "bf16"


def test_named_as_the_catalogue_names_it_the_files_still_decide(
    tmp_path: Path, catalogue: Catalogue, shape: dict[str, Any]
) -> None:
    opened = write(tmp_path / "ft", shape, tensors_of(shape))
    found = find(opened, catalogue, wanted="openai/gpt-oss-20b")
    assert chosen_on("h100", found, engine="native").precision == "bf16"
    types = ["full_attention"] * shape["num_hidden_layers"]  # twice the K/V
    opened = write(tmp_path / "full", shape | {"layer_types": types}, tensors_of(shape))
    with pytest.raises(
        ModelStoreError, match=r"24 layers attend .* 12 expected; .*unset NIM_MODEL"
    ):
        find(opened, catalogue, wanted="gpt-oss-20b")


def test_vocabulary_context_and_tied_embeddings_are_those_of_the_files(
    tmp_path: Path, catalogue: Catalogue, shape: dict[str, Any]
) -> None:
    def need(name: str, **changes: Any) -> tuple[int, int]:
        own, is_tied = shape | changes, changes.get("tie_word_embeddings", False)
        opened = write(tmp_path / name, own, tensors_of(own, "MXFP4", is_tied=is_tied))
        found = find(opened, catalogue)
        chosen = next(
            p
            for p in found.profiles
            if p.name == "native-hopper-mxfp4-tp1-pp1-balanced" and p.model == found.model
        )
        return memory_need(chosen).weights_bytes, chosen.limits.max_model_len

    weights, context = need("plain")
    matrix = 2 * shape["vocab_size"] * shape["hidden_size"]
    assert need("tied", tie_word_embeddings=True) == (weights - matrix, context)
    added = 128 * 2 * 2 * shape["hidden_size"]
    assert need("more", vocab_size=shape["vocab_size"] + 128) == (weights + added, context)
    assert need("short", max_position_embeddings=32_768) == (weights, 32_768)
    types = ["full_attention"] * shape["num_hidden_layers"]
    opened = write(tmp_path / "full", shape | {"layer_types": types}, tensors_of(shape, "MXFP4"))
    whole = next(p for p in find(opened, catalogue).profiles if p.name.startswith("native-hopper"))
    published = next(p for p in catalogue.profiles if p.title.startswith("gpt-oss-20b/native-hop"))
    ratio = memory_need(whole).kv_bytes_per_token / memory_need(published).kv_bytes_per_token
    assert ratio == 2


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_hidden_layers": 20}, "num_hidden_layers is 20, and the files have 24 layers"),
        ({"vocab_size": 201_216}, "vocab_size is 201,216, and model.embed_tokens.weight has 201,0"),
        ({"tie_word_embeddings": True}, "is true, and the files have lm_head.weight; set it to fa"),
    ],
)
def test_a_config_that_the_files_contradict_is_refused_with_both_values(
    tmp_path: Path,
    catalogue: Catalogue,
    shape: dict[str, Any],
    changes: dict[str, Any],
    complaint: str,
) -> None:
    opened = write(tmp_path / "odd", shape | changes, tensors_of(shape))
    with pytest.raises(ModelStoreError, match=complaint):
        find(opened, catalogue)
