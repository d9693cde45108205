"""How training starts: at random, but with the forms of one word close together."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from nano.model import Nano
from nano.tokens import decode

_SPREAD = 0.1  # of a row's entries
_FORM, _OWN = 0.6, 0.35  # weights of a word's form and of the id's own part in its row


def initialise(model: Nano, vocabulary: Sequence[int], seed: int) -> None:
    """Set every parameter of a fresh model."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2 and name != "rows":
                spread = 0.2 if "o_proj" in name or "down" in name else 0.5
                spread *= model.shape.hidden_size**-0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
            elif name.endswith("bias"):
                parameter.zero_()
        model.rows[0] = 0.0
        model.rows[1:] = alike_rows(vocabulary, model.shape.hidden_size, seed)


def alike_rows(vocabulary: Sequence[int], width: int, seed: int) -> Tensor:
    """Return rows [len(vocabulary), width] where forms of one word differ by a common step.

    ' Paris' minus 'Paris' is then the same for every word, so that writing a word without
    the space it had in the prompt is one learnt shift.
    """

    def vector(key: str) -> Tensor:
        number = random.Random(f"{seed}/{key}").randrange(2**62)
        return torch.randn(width, generator=torch.Generator().manual_seed(number))

    rows = []
    for token_id in vocabulary:
        text = decode([token_id])
        before, word = _split(text)
        row = vector(word.lower() or text) + _OWN * vector(f"<{token_id}>")
        if word and before:
            row = row + _FORM * vector(f"<before {before}>")
        if word[:1].isupper():
            row = row + _FORM * vector("<upper>" if word[1:].isupper() else "<capital>")
        rows.append(_SPREAD * row / row.square().mean().sqrt())
    return torch.stack(rows)


def _split(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"([ _.@/-]?)([A-Za-z]+)", text)
    return (match[1], match[2]) if match else ("", "")


def hold_rows(model: Nano, rows: Sequence[int]) -> None:
    """Give some rows no gradient from now on; the model must be on its device already.

    Rows of words that are only copied then stay as drawn (AdamW without weight decay moves
    nothing that has no gradient). All such rows are alike to the model, and a word that
    training seldom or never wrote is copied like any other.
    """
    learnt = torch.ones(model.num_rows, 1, device=model.rows.device)
    learnt[list(rows)] = 0.0
    model.rows.register_hook(lambda gradient: gradient * learnt)
