"""Which errors of torch mean what, and how its memory is given back."""

from __future__ import annotations

from typing import Final

import torch

from engines.native.backends.base import StepErrors

# The CPU allocator and cuBLAS raise plain RuntimeErrors.
_WORDS: Final = ("can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")

# oneDNN had no memory for a kernel. It remembers that in the thread and makes none any more.
_LASTING: Final = "could not create a primitive"


class TorchErrors(StepErrors):
    """Errors of torch, on the CPU and on CUDA."""

    def is_lasting(self, error: BaseException | None) -> bool:
        """Whether every later step may fail like this one, whatever it computes."""
        is_broken = isinstance(error, RuntimeError) and str(error) == _LASTING
        return is_broken or super().is_lasting(error)

    def is_out_of_memory(self, error: BaseException | None) -> bool:
        """Whether a step failed for lack of memory, on whichever device."""
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return True
        return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)

    def give_back(self) -> None:
        """Free the device memory of a failed step; its exception must be gone by now."""
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
