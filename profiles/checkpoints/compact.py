"""Expand the compact form in which nano ships into an ordinary checkpoint folder.

Compact form: a folder of `manifest.json`, `config.json`, `generation_config.json` and
`weights.xz`, an LZMA-compressed safetensors file. It does not hold the rows of the vocabulary but
what they are made of (`Makeup`): vectors drawn from a seed, and a few learnt ones.
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

ROWS_AT_ONCE = 2048  # what a core's cache holds
SPREAD = 0.1  # of the entries of a drawn vector
# How much of an id's row in the embedding is its word and each piece of its spelling.
WORD_SHARE, PIECE_SHARES = 0.35, (0.6, 0.55, 0.5)


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array with its dtype's name in safetensors."""

    dtype: str
    array: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Makeup:
    """What the rows of the vocabulary are made of.

    An id's row in the embedding is its word's vector, its form's vector and, each turned by its
    place, the head rows of the pieces that spell it; a learnt id adds a vector of its own. The head
    has a row for each written id, drawn or learnt, and one for all others.
    """

    seed: int
    word: NDArray[np.int32]  # [vocabulary] number of the id's word
    form: NDArray[np.int32]  # [vocabulary] number of its form: its prefix, its case
    spelling: NDArray[np.int32]  # [vocabulary, pieces] places in `written`, -1 for none
    written: NDArray[np.int32]  # sorted ids
    learnt: NDArray[np.int32]  # sorted ids, all of them written

    def drawn(self, width: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Draw the vectors of the words and the head's rows of the written ids: signs, spread.

        numpy promises that this generator's stream never changes.
        """
        generator = np.random.RandomState(self.seed)
        counts = (int(self.word.max()) + 1, len(self.written))
        words, head = (_signs(generator, count, width) for count in counts)
        return words, head


def _signs(generator: np.random.RandomState, count: int, width: int) -> NDArray[np.float32]:
    drawn = np.frombuffer(generator.bytes(count * width // 8), np.uint8)
    bits = np.unpackbits(drawn).reshape(count, width)
    return (bits.astype(np.float32) * 2 - 1) * np.float32(SPREAD)


def embedding_rows(makeup: Makeup, forms: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the rows of all ids as drawn [vocabulary, width], from the vectors of the forms."""
    width = forms.shape[1]
    words, head = makeup.drawn(width)
    head = np.concatenate([head, np.zeros((1, width), np.float32)])
    pieces = [
        np.float32(share) * np.roll(head, (place + 1) * width // 4, axis=1)
        for place, share in enumerate(PIECE_SHARES)
    ]
    rows = np.empty((len(makeup.word), width), np.float32)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        some = slice(start, start + ROWS_AT_ONCE)
        rows[some] = np.float32(WORD_SHARE) * words[makeup.word[some]] + forms[makeup.form[some]]
        for place, turned in enumerate(pieces):
            rows[some] += turned[makeup.spelling[some, place]]  # -1: the row of zeros
    return rows


def bundled_nano() -> Path:
    return Path(str(files("profiles") / "data" / "nano"))


def expand(source: Path, target: Path) -> None:
    """Write the checkpoint in `source` to the folder `target` in the published format.

    The folder appears whole or not at all. Raises ModelStoreError when a file is missing or
    does not have the checksum the manifest gives.
    """
    manifest = _read_manifest(source)
    whole = {name: _verified(source, name, manifest) for name in (WEIGHTS, *CONFIGS)}
    tensors = _vocabulary(unpack_safetensors(lzma.decompress(whole[WEIGHTS])), manifest)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        made = Path(folder) / "checkpoint"
        made.mkdir()
        for name in CONFIGS:
            (made / name).write_bytes(whole[name])
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


def _vocabulary(tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the checkpoint's tensors: embedding and head in the place of their makeup."""
    kept = {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}
    arrays = {name: tensor.array for name, tensor in tensors.items() if name not in kept}
    makeup = Makeup(
        seed=manifest["drawn_seed"],
        **{name: arrays[name] for name in ("word", "form", "spelling", "written", "learnt")},
    )
    rows = embedding_rows(makeup, from_bf16(arrays["forms"]))
    rows[makeup.learnt] += from_bf16(arrays["learnt.embedding"])
    embedding = to_bf16(rows)
    head = np.empty_like(embedding)
    head[:] = arrays["unmet.head"]
    head[makeup.written] = to_bf16(makeup.drawn(head.shape[1])[1])
    head[makeup.learnt] = arrays["learnt.head"]
    return {_EMBEDDING: Tensor("BF16", embedding), _HEAD: Tensor("BF16", head), **kept}


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of the nearest bf16 of each value, the even one of two."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def unpack_safetensors(content: bytes) -> dict[str, Tensor]:
    length = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        array = np.frombuffer(content[start:end], _DTYPES[entry["dtype"]])
        tensors[name] = Tensor(entry["dtype"], array.reshape(entry["shape"]))
    return tensors


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    with path.open("wb") as file:
        file.write(safetensors_header(tensors))
        for tensor in tensors.values():
            np.ascontiguousarray(tensor.array).tofile(file)


def safetensors_header(tensors: Mapping[str, Tensor]) -> bytes:
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
