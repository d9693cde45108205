"""Write a checkpoint with an adapter merged into it, shard by shard, a few experts at a time."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, Final

import torch
from torch import Tensor

from engines.native.config import ModelConfig, read_json
from engines.native.mapped_tensor import DTYPES
from engines.native.mxfp4 import dequantise, quantise
from engines.native.weights import INDEX, CheckpointTensors, read_entries, tensor_specs
from parts.lora.changes import LowRank, read_adapter
from parts.lora.files import AdapterError

_AT_ONCE: Final = 4  # experts
_CPU: Final = torch.device("cpu")
_PACKED: Final = ("_blocks", "_scales")


@dataclass(slots=True)
class Merged:
    """What was written."""

    num_changed: int
    kept: float | None = None  # of the change to packed experts, what rounding left of it


@dataclass(frozen=True, slots=True)
class _Out:
    """A tensor of the new checkpoint; `part`: which of a packed pair."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    part: str = ""

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype].itemsize


class Merge:
    """A checkpoint and an adapter that fits it; AdapterError or EngineStartError if not."""

    def __init__(self, checkpoint: Path, adapter: Path, *, bf16: bool = False) -> None:
        """`bf16`: unpack all experts."""
        self._checkpoint = checkpoint
        specs = tensor_specs(ModelConfig.from_dir(checkpoint))
        self._tensors = CheckpointTensors(checkpoint, specs)
        self._entries = read_entries(checkpoint)
        self._changes = read_adapter(adapter, specs)
        self._bf16 = bf16
        self._scales: dict[str, list[Tensor]] = {}  # of experts whose blocks are written
        self._wanted = self._left = (
            0.0  # squared length of the change; of it, along it, what is left
        )

    def write(self, target: Path, tell: Callable[[str], None]) -> Merged:
        """Write it to a new folder, which appears when it is whole; OSError."""
        if target.exists():
            raise AdapterError(f"{target}: exists; name a new folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        shards = self._shards()
        needed = sum(out.num_bytes for outs in shards.values() for out in outs)
        if needed > (free := shutil.disk_usage(target.parent).free):
            raise AdapterError(f"{target}: needs {needed / 1e9:.1f} GB; {free / 1e9:.1f} are free")
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            for at, (file, outs) in enumerate(shards.items(), 1):
                tell(f"{file} ({at} of {len(shards)})")
                with (folder / file).open("wb") as stream:
                    self._write_shard(stream, outs)
            self._copy_rest(folder, shards)
            folder.chmod(0o755)
            folder.rename(target)
        except BaseException:
            shutil.rmtree(folder)
            raise
        return Merged(len(self._changes), self._left / self._wanted if self._wanted else None)

    def _shards(self) -> dict[str, list[_Out]]:
        """The tensors of each file, in the order that they are stored in."""
        shards: dict[str, list[_Out]] = {}
        for name, entry in sorted(self._entries.items(), key=lambda item: item[1].begin):
            part = next((each for each in _PACKED if name.endswith(each)), "")
            outs = shards.setdefault(entry.file.name, [])
            if part and self._bf16:
                if part == _PACKED[0]:
                    whole = name.removesuffix(part)
                    outs.append(_Out(whole, "BF16", self._tensors.shape(whole)))
            else:
                outs.append(_Out(name, entry.dtype, entry.shape, part))
        return dict(sorted(shards.items()))

    def _write_shard(self, stream: IO[bytes], outs: list[_Out]) -> None:
        described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for out in outs:
            begin, end = end, end + out.num_bytes
            described[out.name] = {
                "dtype": out.dtype, "shape": out.shape, "data_offsets": [begin, end]
            }  # fmt: skip
        text = json.dumps(described, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        stream.write(len(text).to_bytes(8, "little") + text)
        for out in outs:
            for piece in self._pieces(out):
                stream.write(piece.contiguous().view(torch.uint8).numpy().data)

    def _pieces(self, out: _Out) -> Iterator[Tensor]:
        """The content of a tensor of the new checkpoint."""
        name = out.name.removesuffix(out.part)
        change = self._changes.get(name)
        if out.part and change is not None:
            yield from self._packed(name, change, out.part)
        elif name not in self._entries and not out.part:  # packed before, and unpacked now
            for first, end, blocks, scales in self._groups(name):
                values = dequantise(blocks, scales, torch.float32).transpose(1, 2)
                yield (values if change is None else values + change.of(first, end)).bfloat16()
        elif change is None:
            yield self._tensors.stored(out.name)
        else:
            yield from self._changed(name, change)

    def _changed(self, name: str, change: LowRank) -> Iterator[Tensor]:
        stored = self._tensors.stored(name)
        values = stored if change.base is None else change.base
        if values.dim() == 2:
            yield (values.float() + change.of(0, 1)[0]).to(stored.dtype)
            return
        for first in range(0, len(values), _AT_ONCE):
            end = min(first + _AT_ONCE, len(values))
            yield (values[first:end].float() + change.of(first, end)).to(stored.dtype)

    def _packed(self, name: str, change: LowRank, part: str) -> Iterator[Tensor]:
        """The blocks or the scales of changed experts; scales are kept while blocks are made."""
        if part == _PACKED[1] and name in self._scales:
            yield from self._scales.pop(name)
            return
        made = []
        for first, end, *stored in self._groups(name):
            values = dequantise(stored[0], stored[1], torch.float32)
            wanted = change.of(first, end).transpose(1, 2)
            blocks, scales = quantise(values + wanted)
            if part == _PACKED[0]:
                left = dequantise(blocks, scales, torch.float32) - values
                self._wanted += float((wanted * wanted).sum())
                self._left += float((left * wanted).sum())
            made.append(scales)
            yield blocks if part == _PACKED[0] else scales
        if part == _PACKED[0]:
            self._scales[name] = made

    def _groups(self, name: str) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        first = 0
        for blocks, scales in self._tensors.packed(name, _CPU, _AT_ONCE):
            yield first, (first := first + len(blocks)), blocks, scales

    def _copy_rest(self, folder: Path, shards: dict[str, list[_Out]]) -> None:
        """The small files; the index and config.json tell of what is in the shards now."""
        for path in sorted(self._checkpoint.iterdir()):
            if path.is_file() and path.suffix != ".safetensors" and not path.name.startswith("."):
                shutil.copyfile(path, folder / path.name)
        if not self._bf16:
            return
        config = read_json(folder / "config.json")
        config.pop("quantization_config", None)
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        if (folder / INDEX).exists():
            places = {out.name: file for file, outs in shards.items() for out in outs}
            size = sum(out.num_bytes for outs in shards.values() for out in outs)
            index = {"metadata": {"total_size": size}, "weight_map": places}
            (folder / INDEX).write_text(json.dumps(index, indent=2))
