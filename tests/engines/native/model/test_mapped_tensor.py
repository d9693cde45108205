"""Tensors as parts of files: whole, of any size, also in files that no memory holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engines.native.mapped_tensor import mapped_tensor

MEMORY_IS_LESS = 1 << 43  # 8 TiB: more than a machine maps for writing


@pytest.mark.parametrize("begin", [0, 8, 4096, 5001])  # also where numbers do not begin
@pytest.mark.parametrize("num_values", [0, 3, 700_000])  # read, and mapped
def test_every_value_arrives(tmp_path: Path, begin: int, num_values: int) -> None:
    values = torch.arange(num_values).bfloat16()
    path = tmp_path / "file"
    path.write_bytes(bytes(begin) + values.view(torch.uint8).numpy().tobytes() + b"rest")
    found = mapped_tensor(path, begin, torch.bfloat16, (num_values, 1))
    assert torch.equal(found, values[:, None])
    found += 1  # the file stays as it is
    again = mapped_tensor(path, begin, torch.bfloat16, (num_values, 1))
    assert torch.equal(again, values[:, None])


def test_a_file_larger_than_the_memory_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    try:
        with path.open("wb") as file:
            file.truncate(MEMORY_IS_LESS)
    except OSError as error:
        pytest.skip(f"this file system has no files of 8 TiB: {error}")
    found = mapped_tensor(path, MEMORY_IS_LESS - (4 << 20), torch.float32, (1024, 1024))
    assert not found.any()


@pytest.mark.parametrize("num_values", [4, 4 << 20])
def test_a_file_that_ends_too_early_is_an_error(tmp_path: Path, num_values: int) -> None:
    path = tmp_path / "short"
    path.write_bytes(bytes(10))
    with pytest.raises(ValueError, match=r"ends before|greater than file size"):
        mapped_tensor(path, 0, torch.float32, (num_values,))
