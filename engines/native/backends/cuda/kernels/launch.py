"""How kernels are started, and what their code needs to know of where it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.target_info import current_target
from triton.runtime.jit import constexpr_function

# Through Triton's interpreter (TRITON_INTERPRET=1) kernels run on CPU tensors, without assembly.
IS_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


class KernelLaunch(NamedTuple):
    """A kernel with the arguments that it is started with; `options`: by name, for Triton too."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]

    def start(self) -> None:
        self.kernel[self.grid](*self.args, **self.options)

    @property
    def machine_code(self) -> tuple[Any, ...]:
        """A key that launches share which Triton compiles to the same machine code."""
        return id(self.kernel), *map(_specialised, self.args), *sorted(self.options.items())


class Pointer:
    """A tensor as Triton sees it when it compiles: its type and where it begins."""

    def __init__(self, tensor: Tensor) -> None:
        self.dtype = tensor.dtype
        self._offset = int(tensor.storage_offset()) * tensor.element_size()

    def data_ptr(self) -> int:
        """The offset in its allocation, whose own address every allocator aligns."""
        return self._offset

    def ptr_range(self) -> int:
        """Asked for by other backends of Triton."""
        return 0


def _specialised(arg: Any) -> tuple[Any, ...]:
    """The properties of an argument that Triton specialises on."""
    if isinstance(arg, Tensor | Pointer):
        return arg.dtype, arg.data_ptr() % 16 == 0
    if isinstance(arg, TensorDescriptor):
        return arg.base.dtype, *arg.block_shape
    return (type(arg), arg == 1, arg % 16 == 0) if isinstance(arg, int) else (arg,)


_start: Callable[[KernelLaunch], None] = KernelLaunch.start


@contextmanager
def instead(do: Callable[[KernelLaunch], None]) -> Iterator[None]:
    """A block inside which kernels are not started: `do` gets each launch."""
    global _start
    before, _start = _start, do
    try:
        yield
    finally:
        _start = before


@contextmanager
def each_once() -> Iterator[None]:
    """A block inside which only the first of launches with the same machine code is started."""
    seen, start = set[Any](), _start

    def start_new(launch: KernelLaunch) -> None:
        if (code := launch.machine_code) not in seen:
            seen.add(code)
            start(launch)

    with instead(start_new):
        yield


def launch(
    kernel: Any, grid: tuple[int, ...], *args: Any, is_dependent: bool = False,
    is_early: bool = False, **options: Any,
) -> None:  # fmt: skip
    """Start a kernel whose last parameter, IS_DEPENDENT, says whether kernels overlap here.

    `is_dependent`: it lets the next one begin, and must `gdc_wait()` before it reads or writes what
    earlier kernels write or read; `is_early`: it begins itself before the one before it has ended
    (programmatic dependent launch, Hopper on).
    """
    is_dependent = is_dependent and not IS_INTERPRETED.value  # the interpreter runs in order
    if is_dependent and is_early:
        options["launch_pdl"] = True
    _start(KernelLaunch(kernel, grid, args, {"IS_DEPENDENT": is_dependent, **options}))


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


@constexpr_function
def has_wgmma() -> bool:
    """Whether the kernel is compiled for Hopper's tensor cores, which work beside its warps."""
    if IS_INTERPRETED.value:
        return False
    target = current_target()
    return target is not None and target.arch // 10 == 9


@triton.jit
def dot(a, b, acc):
    """a @ b + acc on the tensor cores; the interpreter multiplies bfloat16 in float32."""
    if IS_INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc)
    return tl.dot(a, b, acc)


@triton.jit
def ask_for(lines):
    if not IS_INTERPRETED:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [lines], tl.int32, False, 1
        )
