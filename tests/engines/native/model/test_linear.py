"""A product is the same whichever of a weight's layouts computes it, and few kernels are kept."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from engines.native.backends.cpu.layers import Linear, can_pack
from tests.close import assert_close


@pytest.mark.parametrize("num_rows", [1, 7, 8, 40, 65])
@pytest.mark.parametrize("num_out", [48, 200, 3000, 45_000])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.25)], ids=str
)
def test_rows_times_weight_plus_bias(
    num_rows: int, num_out: int, dtype: torch.dtype, tolerance: float
) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype)
        for shape in [(num_rows, 96), (num_out, 96), (num_out,)]
    )
    expected = F.linear(x.double(), weight.double(), bias.double())
    with torch.inference_mode():
        found = Linear(weight, bias)(x)
    assert_close(found.double(), expected, atol=tolerance, rtol=0)


# Steps have any number of rows. oneDNN keeps 0.5 MB for each number that it has met.
_ALL_ROWS = """
import ctypes
import torch
from engines.native.backends.cpu.layers import Linear

class Found(ctypes.Structure):  # struct mallinfo2
    _fields_ = [(f"of_{i}", ctypes.c_size_t) for i in range(10)]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Found
held = lambda: (found := libc.mallinfo2()).of_4 + found.of_7  # by mmap, and in use
torch.set_num_threads(1)
with torch.inference_mode():
    linear = Linear(torch.zeros(200, 96), None)
    linear(torch.zeros(40, 96))
    before = held()
    for num_rows in range(33, 1024):
        linear(torch.zeros(num_rows, 96))
    print(held() - before)
"""


@pytest.mark.heavy
@pytest.mark.skipif(not can_pack(torch.float32), reason="this torch has no oneDNN")
def test_a_product_of_every_number_of_rows_keeps_few_kernels() -> None:
    ran = subprocess.run([sys.executable, "-c", _ALL_ROWS], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 48 << 20
