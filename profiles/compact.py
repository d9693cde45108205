"""Expand the compact form in which nano ships into an ordinary checkpoint folder.

Compact form: a folder of `manifest.json`, `config.json`, `generation_config.json` and
`weights.xz`. The last holds, LZMA-compressed, a safetensors file in which the rows of
embedding and unembedding are kept only for the token ids training met (`vocabulary`);
they share those rows, and every other id shares one row of each (`unmet`).
"""

from __future__ import annotations

import json
import lzma
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiles.errors import ModelStoreError

MANIFEST = "manifest.json"
WEIGHTS = "weights.xz"
CONFIGS = ("config.json", "generation_config.json")
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_DTYPES = {"BF16": "<u2", "F32": "<f4", "I32": "<i4"}  # numpy has no bf16: its bits


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array with its dtype's name in safetensors."""

    dtype: str
    array: NDArray[Any]


def bundled_nano() -> Path:
    """Return the folder of the compact checkpoint that ships with the package."""
    return Path(str(files("profiles") / "data" / "nano"))


def expand(source: Path, target: Path) -> None:
    """Write the checkpoint in `source` to the folder `target` in the published format.

    The folder appears whole or not at all. Raises ModelStoreError when a file is missing or
    does not have the checksum the manifest gives.
    """
    manifest = _read_manifest(source)
    tensors = _unpack(lzma.decompress(_verified(source, WEIGHTS, manifest)))
    vocabulary = tensors.pop("vocabulary").array
    for name, kind in ((_EMBEDDING, "embedding"), (_HEAD, "head")):
        rows, unmet = tensors["rows"], tensors[f"unmet.{kind}"]
        tensors[name] = _full_rows(rows, unmet, vocabulary, manifest["vocab_size"])
    for name in ("rows", "unmet.embedding", "unmet.head"):
        del tensors[name]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        made = Path(folder) / "checkpoint"
        made.mkdir()
        for name in CONFIGS:
            (made / name).write_bytes(_verified(source, name, manifest))
        write_safetensors(made / "model.safetensors", tensors)
        _put_in_place(made, target)


def _put_in_place(made: Path, target: Path) -> None:
    try:
        made.rename(target)  # replaces an empty folder too
    except OSError:
        shutil.rmtree(target)
        made.rename(target)


def _read_manifest(source: Path) -> dict[str, Any]:
    path = source / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelStoreError(f"{path}: no readable manifest ({error}); reinstall.") from error
    return manifest


def _verified(source: Path, name: str, manifest: Mapping[str, Any]) -> bytes:
    path = source / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelStoreError(f"{path}: cannot be read ({error}); reinstall.") from error
    expected, found = manifest["sha256"][name], sha256(content).hexdigest()
    if found != expected:
        raise ModelStoreError(
            f"{path}: sha256 is {found}, the manifest says {expected}; the file is damaged,"
            " reinstall."
        )
    return content


def _full_rows(rows: Tensor, unmet: Tensor, vocabulary: NDArray[Any], vocab_size: int) -> Tensor:
    full = np.empty((vocab_size, rows.array.shape[1]), rows.array.dtype)
    full[:] = unmet.array
    full[vocabulary] = rows.array
    return Tensor(rows.dtype, full)


def _unpack(content: bytes) -> dict[str, Tensor]:
    length = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        array = np.frombuffer(content[start:end], _DTYPES[entry["dtype"]])
        tensors[name] = Tensor(entry["dtype"], array.reshape(entry["shape"]))
    return tensors


def pack_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the tensors as the bytes of a safetensors file."""
    return _header(tensors) + b"".join(t.array.tobytes() for t in tensors.values())


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the tensors as a safetensors file."""
    with path.open("wb") as file:
        file.write(_header(tensors))
        for tensor in tensors.values():
            np.ascontiguousarray(tensor.array).tofile(file)


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.array.nbytes
        shape = list(tensor.array.shape)
        entries[name] = {"dtype": tensor.dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
