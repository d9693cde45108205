"""How training starts: forms of a word lie close together, and copying works at once.

Copying is what nano does most and would learn last, so two attention layers begin with
it (an induction circuit). Two heads of layer 0 look one and two tokens back and write what
they see into dimensions that are kept free for it; heads of layer 1 look for places that
follow the same two tokens and write the token they find there. Training left alone soon
wrecks this, so the circuit's own weights are held.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nano.model import Nano, yarn_frequencies
from nano.tokens import decode

_NUM_COPYING = 2  # groups of layer 1
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
        width = _num_row_dimensions(model)
        model.rows.zero_()
        model.rows[1:, :width] = alike_rows(vocabulary, width, seed)
        _look_back(model, generator)
        _copy_what_followed(model)


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


def hold(model: Nano, learnt_rows: Sequence[int]) -> None:
    """Keep the copying circuit and all but some rows as they are: they get no gradient.

    Rows of words that are only copied stay as drawn. Learnt, the row of a word that is
    seldom or never a target is pushed away from every reply, and the word cannot be copied.
    """
    width = model.shape.head_dim
    free = _num_row_dimensions(model)
    back, copying = model.stack()[:2]
    others = torch.ones(model.num_rows, dtype=torch.bool)
    others[list(learnt_rows)] = False
    _hold(model.rows, (slice(None), slice(free, None)), others)
    looking = slice(2 * width)
    _hold(back.attention.q_proj.weight, looking)
    _hold(back.attention.q_proj.bias, looking)
    for linear in (back.attention.k_proj, back.attention.v_proj):
        _hold(linear.weight, slice(width))
        _hold(linear.bias, slice(width))
    _hold(back.attention.o_proj.weight, (slice(None), looking), slice(free, None))
    _hold(back.attention.o_proj.bias, slice(free, None))
    _hold(back.experts.down.weight, slice(free, None))
    _hold(back.experts.down_bias, (..., slice(free, None)))
    heads = model.shape.num_attention_heads // model.shape.num_key_value_heads
    for group in range(_NUM_COPYING):
        queries = slice(group * heads * width, (group * heads + 1) * width)
        keys = group * width + torch.tensor(_slow_lanes(width))
        values = slice(group * width, (group + 1) * width)
        _hold(copying.attention.q_proj.weight, queries)
        _hold(copying.attention.q_proj.bias, queries)
        _hold(copying.attention.k_proj.weight, keys)
        _hold(copying.attention.k_proj.bias, keys)
        _hold(copying.attention.v_proj.weight, values)
        _hold(copying.attention.v_proj.bias, values)
        _hold(copying.attention.o_proj.weight, (slice(None), queries))


def _num_row_dimensions(model: Nano) -> int:
    """Return how many dimensions a row uses; the rest are free for the tokens before."""
    return model.shape.hidden_size - model.shape.head_dim


def _hold(parameter: Tensor, *parts: Any) -> None:
    learnt = torch.ones_like(parameter)
    for part in parts:
        learnt[part] = 0.0
    parameter.register_hook(lambda gradient: gradient * learnt)


def _slow_lanes(width: int) -> list[int]:
    """Return the dimensions of a head that turn slowly with position."""
    quarter = width // 4
    return [*range(quarter, 2 * quarter), *range(3 * quarter, width)]


def _look_back(model: Nano, generator: torch.Generator) -> None:
    """Let two heads of layer 0 write the tokens one and two back into the free dimensions."""
    attention, width = model.stack()[0].attention, model.shape.head_dim
    half = width // 2
    frequencies, _ = yarn_frequencies(model.shape)
    strength = 6.0 * (frequencies > 0.05)
    _bias(attention.k_proj)[:width] = torch.cat([strength, 0 * strength])
    attention.k_proj.weight[:width] *= 0.1
    attention.v_proj.weight[:width] = 0.0
    attention.v_proj.weight[:half] = _reading(model, generator)
    attention.o_proj.weight[-width:] = 0.0
    model.stack()[0].experts.down.weight[-width:] = 0.0
    for head in range(2):
        lanes = slice(head * width, (head + 1) * width)
        # rotated by its own position, the query's bias meets the key's that far back
        angles = (head + 1) * frequencies
        turned = [strength * angles.cos(), -strength * angles.sin()]
        _bias(attention.q_proj)[lanes] = torch.cat(turned)
        attention.q_proj.weight[lanes] *= 0.1
        attention.o_proj.weight[:, lanes] = 0.0
        written = _num_row_dimensions(model) + head * half + torch.arange(half)
        attention.o_proj.weight[written, lanes.start + torch.arange(half)] = 0.17


def _reading(model: Nano, generator: torch.Generator) -> Tensor:
    """Return an orthonormal map [head_dim / 2, hidden] that reads a token's row."""
    rows, half = _num_row_dimensions(model), model.shape.head_dim // 2
    reading = torch.zeros(half, model.shape.hidden_size)
    reading[:, :rows] = torch.linalg.qr(torch.randn(rows, half, generator=generator))[0].T
    return reading


def _copy_what_followed(model: Nano) -> None:
    """Let the first head of two groups of layer 1 copy what followed the last two tokens.

    A key's tokens one and two back are compared with the query's own and the one before,
    on the slowly turning half of a head's dimensions; each group compares half of what
    was read and carries a share of a row, enough to tell rows apart.
    """
    attention, width = model.stack()[1].attention, model.shape.head_dim
    heads = model.shape.num_attention_heads // model.shape.num_key_value_heads
    half, quarter = width // 2, width // 4
    reading = model.stack()[0].attention.v_proj.weight[:half].clone()
    slow, free = torch.tensor(_slow_lanes(width)), _num_row_dimensions(model)
    for group in range(_NUM_COPYING):
        part = group * quarter + torch.arange(quarter)
        keys, queries = group * width, group * heads * width
        attention.k_proj.weight[keys + slow] = 0.0
        attention.q_proj.weight[queries : queries + width] = 0.0
        attention.k_proj.weight[keys + slow[:quarter], free + part] = 3.5
        attention.q_proj.weight[queries + slow[:quarter]] = 3.5 * reading[part]
        attention.k_proj.weight[keys + slow[quarter:], free + half + part] = 3.5
        attention.q_proj.weight[queries + slow[quarter:], free + part] = 3.5
        carried = group * width + torch.arange(width)
        attention.v_proj.weight[keys : keys + width] = 0.0
        attention.v_proj.weight[keys + torch.arange(width), carried] = 1.0
        attention.o_proj.weight[:, queries : queries + width] = 0.0
        attention.o_proj.weight[carried, queries + torch.arange(width)] = 0.5
        attention.sinks[group * heads] = 12.0


def _bias(linear: nn.Linear) -> Tensor:
    return linear.bias
