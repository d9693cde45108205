"""From logits to the next tokens, on the device.

A token is drawn by the exponential race: the largest of logit / temperature - ln(E), with E
exponentially distributed noise (Gumbel's trick). The noise of a token comes from Philox, keyed by
the request's seed and counted by the token and its position in the answer: neither batch
neighbours nor the place in the batch can change a draw. Temperature 0 is the largest logit.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _log_noise(seed, position, quad):
    """ln of exponential noise of tokens 4n..4n + 3 for each n of quad (Q): (Q, 4)."""
    r0, r1, r2, r3 = tl.philox(seed, quad, position, 0, 0)
    bits = tl.reshape(tl.join(tl.join(r0, r2), tl.join(r1, r3)), [quad.shape[0], 4])
    u = (bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    u = tl.minimum(u, 0.99999994)
    # -log(1 - u), exact for small u, where 1 - u would round: these win the race.
    e = tl.where(u < 1e-3, u + 0.5 * u * u, -tl.log(1.0 - u))
    return tl.log(e)


@triton.jit
def draw_kernel(
    logits,
    num_rows,
    slots,
    temperatures,
    seeds,
    generated,
    floors,
    part_best,
    part_token,
    V,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (CHUNKS, rows): the winner of each part of the vocabulary.

    logits (rows, V) float32; slots (rows) int32; `temperatures` float32 and `seeds` int64
    (slots); `generated` (rows) int32: tokens of the answer so far; part_best float32 and part_token
    int32 (rows, CHUNKS). Logits under floors[row] are out. A logit that is not a number wins with
    token -1. The largest of logit / temperature - ln(exponential noise) is a draw of the softmax
    (the Gumbel-max trick); noise: Philox 4x32, Salmon et al. 2011.
    """
    chunk = tl.program_id(0)
    row = tl.program_id(1)
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    if row < tl.load(num_rows):
        slot = tl.load(slots + row)
        temperature = tl.load(temperatures + slot)
        seed = tl.load(seeds + slot)
        position = tl.load(generated + row)
        quads = tl.cdiv(V, 4 * CHUNKS)  # of tokens that share a Philox counter
        best = tl.full([BLOCK, 4], -3e38, tl.float32)
        at = tl.zeros([BLOCK, 4], tl.int32)
        broken = tl.zeros([BLOCK, 4], tl.int32)
        inverse = 1.0 / tl.maximum(temperature, 1e-6)
        floor = tl.load(floors + row)
        for first in tl.range(0, quads, BLOCK, num_stages=1):
            within = first + tl.arange(0, BLOCK)
            quad = chunk * quads + within
            token = quad[:, None] * 4 + tl.arange(0, 4)[None, :]
            is_in = (within < quads)[:, None] & (token < V)
            value = tl.load(logits + row.to(tl.int64) * V + token, mask=is_in, other=-1e30)
            broken = tl.maximum(broken, ((value != value) | (value > 1e38)).to(tl.int32))
            if temperature > 0:
                noisy = value * inverse - _log_noise(seed, position, quad)
                value = tl.where(value >= floor, noisy, -1e38)
            value = tl.where(is_in, value, -2e38)
            at = tl.where(value > best, token, at)
            best = tl.maximum(value, best)
        peak = tl.max(best)
        winner = tl.min(tl.where(best == peak, at, 2147483647))
        if tl.max(broken) > 0:
            peak = 3e38
            winner = -1
        tl.store(part_best + row * CHUNKS + chunk, peak)
        tl.store(part_token + row * CHUNKS + chunk, winner)


@triton.jit
def pick_kernel(
    part_best,
    part_token,
    num_rows,
    slots,
    token_ids,
    sampled,
    positions,
    generated,
    CHUNKS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (rows): the winner of all parts becomes the next input of the row's slot.

    part_best and part_token (rows, CHUNKS) as `draw_kernel` writes them; sampled, positions and
    generated (rows), token_ids (slots) int32.
    """
    row = tl.program_id(0)
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    if row < tl.load(num_rows):
        i = tl.arange(0, CHUNKS)
        best = tl.load(part_best + row * CHUNKS + i)
        token = tl.load(part_token + row * CHUNKS + i)
        winner = tl.min(tl.where(best == tl.max(best, 0), token, 2147483647), 0)
        tl.store(sampled + row, winner)
        tl.store(token_ids + tl.load(slots + row), winner)
        tl.store(positions + row, tl.load(positions + row) + 1)
        tl.store(generated + row, tl.load(generated + row) + 1)
