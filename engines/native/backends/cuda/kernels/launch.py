"""How kernels are started, and what their code needs to know of where it runs."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

# Through Triton's interpreter (TRITON_INTERPRET=1) kernels run on CPU tensors, without assembly.
IS_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


def launch(
    kernel: Any, grid: tuple[int, ...], *args: Any, is_dependent: bool = False, **options: Any
) -> None:
    """Start a kernel whose last parameter says whether it may begin before its predecessor ends.

    `is_dependent`: programmatic dependent launch (Hopper on). Such a kernel must `gdc_wait()`
    before it reads or writes what earlier kernels write or read.
    """
    is_dependent = is_dependent and not IS_INTERPRETED.value  # the interpreter runs in order
    if is_dependent:
        options["launch_pdl"] = True
    kernel[grid](*args, IS_DEPENDENT=is_dependent, **options)


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


@triton.jit
def dot(a, b, acc):
    """a @ b + acc on the tensor cores; the interpreter multiplies bfloat16 in float32."""
    if IS_INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc)
    return tl.dot(a, b, acc)
