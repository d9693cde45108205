"""Headers of safetensors files: what a library writes is read, and anything else is one error."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from profiles.checkpoints.safetensors_header import (
    MAX_HEADER_BYTES,
    TensorEntry,
    head_bytes,
    parse_header,
    read_header,
)
from profiles.errors import ModelStoreError


def headed(text: bytes | object) -> bytes:
    content = text if isinstance(text, bytes) else json.dumps(text).encode()
    return struct.pack("<Q", len(content)) + content


def tensor(
    dtype: object = "U8", shape: object = (4,), offsets: object = (0, 4)
) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    arrays: dict[str, NDArray[Any]] = {
        "a": np.zeros((3, 5), np.float32),
        "b": np.zeros((), np.int64),
        "c": np.zeros((0, 7)),
    }
    path = tmp_path / "model.safetensors"
    save_file(arrays, path, metadata={"format": "pt", "shape": "words"})
    header = read_header(path)
    assert header.file_bytes == path.stat().st_size
    assert {name: (each.dtype, each.shape) for name, each in header.tensors.items()} == {
        "a": ("F32", (3, 5)),
        "b": ("I64", ()),
        "c": ("F64", (0, 7)),
    }
    assert header.tensors["a"].num_bytes == 60


def test_the_first_bytes_are_enough() -> None:
    head = headed({"w": tensor("F4", (4, 2), (0, 4))})
    assert head_bytes(head[:8], "x") == len(head)
    header = parse_header(head + b"more", "x")
    assert header.tensors == {"w": TensorEntry("F4", (4, 2), 0, 4)}
    assert header.file_bytes == len(head) + 4


LIES = {
    "empty": (b"", "it has 0 bytes"),
    "short": (b"\1\0", "it has 2 bytes"),
    "endless": (b"\xff" * 64, "more than 16,777,216 bytes"),
    "cut": (struct.pack("<Q", 99) + b"{}", "ends within its header of 99 bytes"),
    "no JSON": (headed(b"{"), "truncated"),
    "a list": (headed([]), "Expected `object`"),
    "no UTF-8": (headed(b'{"\xff": 1}'), "utf-8"),
    "deep": (headed(b'{"a":' * 100_000), "nested too deep"),
    "deep in a shape": (headed({"a": {**tensor(), "shape": 7}})[:-1] + b"[" * 9, "malformed"),
    "a number": (headed({"a": 1}), "tensor 'a': Expected `object`"),
    "a null": (headed({"a": None}), "tensor 'a': Expected `object`"),
    "no dtype": (headed({"a": {"shape": [], "data_offsets": [0, 1]}}), "missing required field"),
    "a foreign dtype": (headed({"a": tensor("X9")}), "unknown dtype 'X9'"),
    "a dtype of no text": (headed({"a": tensor(8)}), r"Expected `str`"),
    "a negative shape": (headed({"a": tensor(shape=[-4])}), ">= 0"),
    "a shape of text": (headed({"a": tensor(shape=["4"])}), r"Expected `int`"),
    "a shape of truth": (headed({"a": tensor(shape=[True])}), r"Expected `int`"),
    "a shape of halves": (headed({"a": tensor(shape=[4.5])}), r"Expected `int`"),
    "a huge shape": (headed({"a": tensor(shape=[1 << 50] * 9)}), "but has 4 bytes"),
    "a number beyond all": (headed({"a": tensor(shape=[10**400])}), "tensor 'a'"),
    "a thousand dimensions": (headed({"a": tensor(shape=[1] * 1000)}), "length <= 32"),
    "three offsets": (headed({"a": tensor(offsets=[0, 2, 4])}), "length 2"),
    "offsets backwards": (headed({"a": tensor(offsets=[4, 0])}), "but has -4 bytes"),
    "an offset below": (headed({"a": tensor(offsets=[-4, 0])}), ">= 0"),
    "an offset beyond": (headed({"a": tensor(offsets=[0, 1 << 60])}), "<= "),
    "too few bytes": (headed({"a": tensor(offsets=[0, 3])}), r"U8 of shape \[4\], but has 3 bytes"),
    "a gap": (headed({"a": tensor(offsets=[4, 8])}), "begins at byte 4 instead of 0"),
    "an overlap": (headed({"a": tensor(), "b": tensor(offsets=[2, 6])}), "at byte 2 instead of 4"),
    "metadata of numbers": (headed({"__metadata__": {"a": 1}}), "Expected `str`"),
    "metadata of a list": (headed({"__metadata__": []}), "Expected `object`"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_one_line_that_names_the_file(lie: str) -> None:
    content, complaint = LIES[lie]
    with pytest.raises(ModelStoreError, match=complaint) as caught:
        parse_header(content, "x.safetensors")
    assert str(caught.value).startswith("x.safetensors ")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "unit",
    [
        b'"%07d":{},',
        *(
            pytest.param(unit, marks=pytest.mark.heavy)
            for unit in (b'"%07d":1,', b'"%07d":[],', b'"%06d":{"shape":[[[1]]]},')
        ),
    ],
)
def test_the_largest_header_takes_little_memory(unit: bytes) -> None:
    text = b"{" + b"".join(unit % i for i in range(MAX_HEADER_BYTES // len(unit % 0) - 1))
    head = headed(text[:-1] + b"}")
    tracemalloc.start()
    try:
        with pytest.raises(ModelStoreError):
            parse_header(head, "x")
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
