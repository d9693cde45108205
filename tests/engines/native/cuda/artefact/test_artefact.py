"""What a start takes over from the one before it: packed weights."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.errors import EngineStartError
from engines.native.artefact import upload
from engines.native.artefact.store import checksum
from engines.native.backends.cuda.artefact.parts import weights_part
from engines.native.config import NativeConfig
from engines.native.weights import CheckpointTensors, tensor_specs
from profiles.checkpoints.packed import delete_shards
from tests.engines.native.cuda.artefact.artefact_case import MODEL, damage, files_of, folder_of
from tests.engines.native.cuda.kernels.kernel_fixtures import DEVICE

from engines.native.backends.cuda.artefact.kept import Artefact  # isort: skip
from engines.native.backends.cuda.weights.load import load_weights  # isort: skip
from engines.native.backends.cuda.weights.model import ModelWeights, PackedExperts  # isort: skip

EVERY = range(MODEL.num_hidden_layers)


def load(config: NativeConfig) -> ModelWeights:
    (weights,) = Artefact(config, MODEL).weights(8, [(EVERY, DEVICE)])
    return weights


def tensors(weights: ModelWeights) -> list[torch.Tensor]:
    found = [weights.embedding, weights.norm, weights.head, weights.cosines, weights.sines]
    for layer in weights.layers:
        for each in fields(layer):
            value = getattr(layer, each.name)
            is_packed = isinstance(value, PackedExperts)
            found += [value.words, value.scales, value.bias] if is_packed else [value]
    return found


def are_equal(one: ModelWeights, other: ModelWeights) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(other), strict=True))


def directly(config: NativeConfig) -> ModelWeights:
    return load_weights(CheckpointTensors(config.model_dir, tensor_specs(MODEL)), MODEL, 8, DEVICE)


def test_packed_weights_come_back_to_the_bit_and_are_made_once(
    config: NativeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "BUFFER_BYTES", 1000)  # tensors in many pieces
    assert are_equal(load(config), directly(config))
    made = files_of(config)
    assert are_equal(load(config), directly(config))
    assert files_of(config) == made


def test_plain_experts_come_back_too(config: NativeConfig) -> None:
    for path in config.model_dir.glob("model*"):
        path.unlink()
    plain = {name: torch.randn(s.shape).bfloat16() for name, s in tensor_specs(MODEL).items()}
    save_file(plain, config.model_dir / "model.safetensors")
    for _ in range(2):
        assert are_equal(load(config), directly(config))
    folder = folder_of(config, weights_part(config))
    assert len(list(folder.glob("*.safetensors"))) == MODEL.num_hidden_layers + 1


def test_rounded_weights_are_kept_beside_those_that_are_not(
    config: NativeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in config.model_dir.glob("model*"):
        path.unlink()
    plain = {name: torch.randn(s.shape).bfloat16() for name, s in tensor_specs(MODEL).items()}
    save_file(plain, config.model_dir / "model.safetensors")
    as_stored = load(config)
    config = replace(config, keep_weights=False, quantize="mxfp4")  # kept without being asked
    first = load(config)
    assert first.layers[0].gate_up.is_packed
    made = files_of(config)

    def never(*_: object) -> None:
        raise AssertionError("rounded again")

    with monkeypatch.context() as patched:
        patched.setattr("engines.native.weights.quantise", never)
        assert are_equal(load(config), first)
    assert files_of(config) == made
    assert are_equal(load(replace(config, quantize=None)), as_stored)
    assert files_of(config) == made
    folder = folder_of(config, weights_part(config))
    rounded = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    expected = Artefact(config, MODEL).weights_bytes([EVERY])
    assert expected[0] <= rounded < expected[0] + 20_000  # of the headers


def counted(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The same for ever: bytes that count up, from where the name says."""
    count = torch.arange(tensor.numel()) + len(name)
    return (count % (120 if name.endswith("_scales") else 251)).to(tensor.dtype).view_as(tensor)


def test_the_layout_is_the_one_of_its_number(config: NativeConfig) -> None:
    """A change of the bytes must raise fragment_order.LAYOUT, and with it this."""
    for path in config.model_dir.glob("*.safetensors"):
        save_file({n: counted(n, t) for n, t in load_file(path).items()}, path)
    load(config)
    digest = hashlib.sha256()
    for path in sorted(folder_of(config, weights_part(config)).glob("*.safetensors")):
        for name, tensor in sorted(load_file(path).items()):
            digest.update(f"{name} {checksum(tensor)}".encode())
    assert (weights_part(config).identity["layout"], digest.hexdigest()[:16]) == (
        1,
        "2d51a3f936b1c665",
    )


def test_a_flipped_bit_is_found_and_mended(config: NativeConfig) -> None:
    load(config)
    path = folder_of(config, weights_part(config)) / "layer-001.safetensors"
    content = damage(path)
    assert are_equal(load(config), directly(config))
    assert path.read_bytes() != content


@pytest.mark.parametrize(
    "harm",
    [
        lambda content: (1 << 60).to_bytes(8, "little") + content[8:],
        lambda content: content.replace(b'"I32"', b'"I16"'),
        lambda content: content.replace(b"gate_up.words", b"gate_up.wordz"),
        lambda content: content.replace(b'"shape":[64]', b'"shape":[32]'),
        lambda content: content[:8] + b"?" + content[9:],
    ],
)
def test_a_header_that_lies_is_found(config: NativeConfig, harm: object) -> None:
    load(config)
    path = folder_of(config, weights_part(config)) / "layer-000.safetensors"
    content = path.read_bytes()
    path.write_bytes(harm(content))  # type: ignore[operator]
    assert path.read_bytes() != content
    assert are_equal(load(config), directly(config))


def test_another_checkpoint_in_the_same_folder_is_packed_anew(config: NativeConfig) -> None:
    before = load(config)
    path = config.model_dir / "model-0.safetensors"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    later = path.stat().st_mtime + 5
    os.utime(path, (later, later))
    after = load(config)
    assert not are_equal(after, before)
    assert are_equal(after, directly(config))


def test_without_room_the_checkpoint_is_loaded_and_the_reason_told(
    config: NativeConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("engines.native.artefact.store._SPARE_BYTES", 10**21)
    assert are_equal(load(config), directly(config))
    assert "The packed weights cannot be saved" in caplog.text
    assert "GB are free" in caplog.text


def test_a_disk_that_fills_up_meanwhile_costs_the_keeping_only(
    config: NativeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
    try:
        packed = load(config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "The packed weights cannot be saved" in caplog.text
    assert files_of(config) == {}
    assert are_equal(packed, directly(config))


def test_an_artefact_is_for_a_gpu() -> None:
    with pytest.raises(EngineStartError, match="only device cuda has an artefact"):
        NativeConfig(Path("model"), artefact_dir=Path("store"))


def test_without_being_asked_a_start_keeps_no_weights(config: NativeConfig) -> None:
    plain = replace(config, keep_weights=False)
    assert are_equal(load(plain), directly(config))
    assert files_of(config) == {}
    load(config)
    made = files_of(config)
    assert are_equal(load(plain), directly(config))  # from what is kept
    assert files_of(config) == made


def test_packed_weights_serve_without_the_checkpoint(config: NativeConfig) -> None:
    before = load(config)
    expected = Artefact(config, MODEL).weights_bytes([EVERY])
    size = sum(path.stat().st_size for path in config.model_dir.glob("*.safetensors"))
    assert delete_shards(config.model_dir, "of these") == size
    assert not [*config.model_dir.glob("*.safetensors")]
    for wanted in (config, replace(config, keep_weights=False)):
        assert are_equal(load(wanted), before)
    assert Artefact(config, MODEL).weights_bytes([EVERY]) >= expected
    assert delete_shards(config.model_dir, "of these") == 0
    assert are_equal(load(config), before)


def test_packed_weights_that_are_damaged_or_gone_name_the_remedy(config: NativeConfig) -> None:
    load(config)
    delete_shards(config.model_dir, "of these")
    folder = folder_of(config, weights_part(config))
    damage(folder / "layer-001.safetensors")
    with pytest.raises(EngineStartError, match=r"are damaged: .*`harmonium download-to-cache`"):
        load(config)
    assert folder.exists()  # nothing else has these weights
    shutil.rmtree(folder)
    for wanted in (config, replace(config, artefact_dir=None)):
        with pytest.raises(EngineStartError, match=r"packed-only.*packed\.json"):
            load(wanted)
        with pytest.raises(EngineStartError, match="packed-only"):
            Artefact(wanted, MODEL).weights_bytes([EVERY])


def test_each_gpu_gets_its_layers_alone_from_the_checkpoint_and_from_what_is_kept(
    config: NativeConfig,
) -> None:
    """Of a model on two GPUs: the first has the embedding, the last the norm and the head."""
    split = [range(1), range(1, MODEL.num_hidden_layers)]
    whole, artefact = directly(config), Artefact(config, MODEL)
    nothing = whole.embedding[:0]
    wanted = [
        replace(whole, layers=whole.layers[:1], norm=nothing, head=nothing),
        replace(whole, layers=whole.layers[1:], embedding=nothing),
    ]
    sizes = artefact.weights_bytes(split)
    assert sum(sizes) == sum(artefact.weights_bytes([EVERY]))
    shares = [(layers, DEVICE) for layers in split]
    for start in (replace(config, artefact_dir=None), config, config):
        parts = Artefact(start, MODEL).weights(8, shares)
        for part, expected, size in zip(parts, wanted, sizes, strict=True):
            assert are_equal(part, expected)
            kept = sum(each.nbytes for each in tensors(part))
            assert kept == size + part.cosines.nbytes + part.sines.nbytes
    delete_shards(config.model_dir, "of these")
    alone = Artefact(config, MODEL)
    for found, size in zip(alone.weights_bytes(split), sizes, strict=True):
        assert size <= found < size + 10_000  # and the files' headers
    assert all(map(are_equal, alone.weights(8, shares), wanted))


def test_a_damaged_layer_is_found_by_the_gpu_that_has_it(config: NativeConfig) -> None:
    load(config)
    damage(folder_of(config, weights_part(config)) / "layer-001.safetensors")
    shares = [(range(1), DEVICE), (range(1, 2), DEVICE)]
    first, second = Artefact(config, MODEL).weights(8, shares)
    whole = directly(config)
    assert are_equal(second, replace(whole, layers=whole.layers[1:], embedding=whole.embedding[:0]))
    assert torch.equal(first.embedding, whole.embedding)
