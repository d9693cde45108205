"""What counts as being out of memory, and how what a failed step held is given back."""

from __future__ import annotations

from typing import Final

import torch

# The CPU allocator and cuBLAS raise plain RuntimeErrors.
_WORDS: Final = ("can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")

# oneDNN had no memory for a kernel. It remembers that in the thread and makes none any more.
_LASTING: Final = "could not create a primitive"


def is_lasting(error: BaseException | None) -> bool:
    """Whether every later step may fail like this one, whatever it computes."""
    return isinstance(error, RuntimeError) and str(error) == _LASTING


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a step failed for lack of memory, on whichever device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def give_back() -> None:
    """Return to the device what a failed step held; its exception must be gone by now."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
