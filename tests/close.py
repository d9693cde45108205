"""What torch.testing.assert_close does, without its imports: sympy alone takes over a second."""

from __future__ import annotations

import numpy as np
from torch import Tensor


def assert_close(found: Tensor, expected: Tensor, *, atol: float, rtol: float) -> None:
    """Equal shapes and types, and values that are near."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    ours, theirs = (each.detach().double().numpy() for each in (found, expected))
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)
