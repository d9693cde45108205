"""A product of MXFP4 tiles in fragment order with a few columns of activations.

One call takes a supertile (16 rows x 192 inputs) of each of a warp's lanes and 8 columns. The
assembly decodes 8 weights with 11 integer operations, multiplies them as fp16 on the tensor
cores with float32 accumulators, and applies the scale of each 32 inputs to the accumulator:
weights are never rounded. `_product_spelt_out` is the same in Triton, for the interpreter.

`decode_tile` makes bf16 weights of them, scale included and exact too, for `tl.dot`.
MXFP4: OCP Microscaling Formats 1.0; fragments: PTX ISA, `mma.m16n8k16`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engines.native.backends.cuda.kernels.launch import IS_INTERPRETED

_TILES = 3


def _assembly() -> str:
    """PTX for one lane: 4 accumulators, from words, scales and columns."""
    words, scales = 4, 4 + 4 * _TILES
    columns = scales + 4
    lines = ["{ .reg .b32 a0,a1,a2,a3,t,sa,sb; .reg .f32 f0,f1,d0,d1,d2,d3;"]
    lines += [f"mov.f32 ${i}, 0f00000000;" for i in range(4)]
    for tile in range(_TILES):
        for block in range(2):
            lines += [f"mov.f32 d{i}, 0f00000000;" for i in range(4)]
            for pair in range(2):
                x = columns + 12 * block + 4 * tile + 2 * pair
                lines += _decode(f"${words + 4 * tile + 2 * block + pair}")
                lines.append(
                    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                    f"{{d0,d1,d2,d3}},{{a0,a1,a2,a3}},{{${x},${x + 1}}},{{d0,d1,d2,d3}};"
                )
            lines += _scale(f"${scales + tile}", block)
    return "\n".join([*lines, "}"])


def _decode(word: str) -> list[str]:
    return [
        f"and.b32 a0,{word},0x8E008E00;",
        f"shl.b32 a1,{word},3;",
        "and.b32 a1,a1,0x8E008E00;",
        f"shl.b32 a2,{word},6;",
        "and.b32 a2,a2,0x0E000E00;",
        f"shl.b32 t,{word},1;",
        "lop3.b32 a2,t,0x80008000,a2,0xEA;",
        f"shl.b32 a3,{word},9;",
        "and.b32 a3,a3,0x0E000E00;",
        f"shl.b32 t,{word},2;",
        "lop3.b32 a3,t,0x80008000,a3,0xEA;",
    ]


def _scale(scale: str, block: int) -> list[str]:
    """Add the accumulators of one block of 32 inputs, times the scales of rows g and g + 8."""
    shifts = ("shl.b32 sa,{0},23;", "shl.b32 sb,{0},15;")
    if block == 1:
        shifts = ("shl.b32 sa,{0},7;", "shr.b32 sb,{0},1;")
    lines = [shift.format(scale) for shift in shifts]
    lines += ["and.b32 sa,sa,0x7F800000;", "and.b32 sb,sb,0x7F800000;"]
    lines += ["mov.b32 f0,sa;", "mov.b32 f1,sb;"]
    lines += [f"fma.rn.f32 ${i},d{i},f{i // 2},${i};" for i in range(4)]
    return lines


_ASSEMBLY = tl.constexpr(_assembly())
_CONSTRAINTS = tl.constexpr(",".join(["=&f"] * 4 + ["r"] * (4 * _TILES + 4 + 24)))

# From a word and the bf16 scales (twice) of rows g and g + 8: rows g and g + 8 of inputs 0, 1, then
# of inputs 2, 3. A code becomes a bf16 short of 2**126, which its scale makes up for. It is made
# by an fma with -0, as mul.bf16x2 needs 9.0: exact, and ptxas makes one product of it there.
_DECODE = tl.constexpr("""{ .reg .b32 t,u,z; mov.b32 z,0x80008000;
shr.u32 t,$4,3; and.b32 t,t,0x01C001C0; lop3.b32 t,$4,0x80008000,t,0xEA;
fma.rn.bf16x2 $0,t,$5,z;
shl.b32 t,$4,3; and.b32 u,$4,0x01C001C0; lop3.b32 t,t,0x80008000,u,0xEA;
fma.rn.bf16x2 $1,t,$6,z;
shl.b32 t,$4,1; shl.b32 u,$4,3; and.b32 u,u,0x01C001C0; lop3.b32 t,t,0x80008000,u,0xEA;
fma.rn.bf16x2 $2,t,$5,z;
shl.b32 t,$4,2; shl.b32 u,$4,6; and.b32 u,u,0x01C001C0; lop3.b32 t,t,0x80008000,u,0xEA;
fma.rn.bf16x2 $3,t,$6,z; }""")


@triton.jit
def place(k):
    """The place of input k of a row for `decode_tile`: within its 32 neighbours, as threads of
    the tensor cores hold them."""
    return (k & -32) | ((k & 4) << 2) | ((k & 2) << 2) | ((k >> 2) & 6) | (k & 1)


@triton.jit
def decode_tile(halves, scales, GROUPS: tl.constexpr):
    """int16 halves of a tile's words (GROUPS, 256) and its scales (GROUPS, 8) -> bf16 weights
    (16 * GROUPS rows, 64 inputs by place)."""
    v = tl.reshape(halves, [GROUPS, 8, 4, 2, 2, 2])  # group g q block pair half
    low = tl.join(_bf16_power(scales, 0), _bf16_power(scales, 16))  # group g block
    high = tl.join(_bf16_power(scales, 8), _bf16_power(scales, 24))
    low = low[:, :, None, :, None, None]
    high = high[:, :, None, :, None, None]
    if IS_INTERPRETED:
        a0, a1, a2, a3 = _decode_spelt_out(v.to(tl.int32), low, high)
    else:
        a0, a1, a2, a3 = tl.inline_asm_elementwise(
            _DECODE,
            "=&r,=&r,=&r,=&r,r,r,r",
            [v, low, high],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    tile = tl.join(tl.join(a0, a2), tl.join(a1, a3))  # group g q block pair half late row
    tile = tl.permute(tile, [0, 7, 1, 3, 4, 6, 2, 5])
    return tl.reshape(tile, [16 * GROUPS, 64])


@triton.jit
def _decode_spelt_out(v, low, high):
    a0 = _bf16_product((v & -32768) | ((v >> 3) & 0x1C0), low)
    a1 = _bf16_product(((v << 3) & -32768) | (v & 0x1C0), high)
    a2 = _bf16_product(((v << 1) & -32768) | ((v << 3) & 0x1C0), low)
    a3 = _bf16_product(((v << 2) & -32768) | ((v << 6) & 0x1C0), high)
    return a0, a1, a2, a3


@triton.jit
def _bf16_product(bits, scale):
    """Of the low halves of `bits`; the interpreter has no bfloat16 arithmetic."""
    return ((bits << 16).to(tl.float32, bitcast=True) * scale.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _bf16_power(s, SHIFT: tl.constexpr):
    """The bf16 scale of codes that are short of 2**126; stored exponents are raised by 14."""
    return ((((s >> SHIFT) & 0xFF) + 112) << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def load_supertiles(words, scales, supertile, NUM: tl.constexpr):
    """One supertile of each of n groups of rows: three tiles and their scales, each [n, 128].

    words and scales [n] point at the groups; supertile [n] from NUM on is zero.
    """
    lane_word = tl.arange(0, 128)
    is_in = (supertile < NUM)[:, None]
    at = words[:, None] + supertile[:, None] * 384 + lane_word[None, :]
    w0 = tl.load(at, mask=is_in, other=0, eviction_policy="evict_first")
    w1 = tl.load(at + 128, mask=is_in, other=0, eviction_policy="evict_first")
    w2 = tl.load(at + 256, mask=is_in, other=0, eviction_policy="evict_first")
    row_word = (lane_word // 16) * 4 + lane_word % 4
    s_at = scales[:, None] + supertile[:, None] * 32 + row_word[None, :]
    s = tl.load(s_at, mask=is_in, other=0)
    return w0, w1, w2, s


@triton.jit
def load_columns(at, is_in):
    """The activations that meet a supertile, from pointers to pairs of fp16 as int32."""
    x0 = tl.load(at, mask=is_in, other=0)
    x1 = tl.load(at + 32, mask=is_in, other=0)
    x2 = tl.load(at + 64, mask=is_in, other=0)
    x3 = tl.load(at + 16, mask=is_in, other=0)
    x4 = tl.load(at + 48, mask=is_in, other=0)
    x5 = tl.load(at + 80, mask=is_in, other=0)
    return x0, x1, x2, x3, x4, x5


@triton.jit
def product_8(w0, w1, w2, s, x0, x1, x2, x3, x4, x5):
    """(n, 128) of each, 128 = 32 lanes x 4 -> (n, 128) accumulators of 16 rows x 8 columns.

    Lane (g, q) ends with rows g (two values) and g + 8 (two), of columns 2q and 2q + 1.
    """
    if IS_INTERPRETED:
        return _product_spelt_out(w0, w1, w2, s, x0, x1, x2, x3, x4, x5)
    return tl.inline_asm_elementwise(
        _ASSEMBLY,
        _CONSTRAINTS,
        [w0, w1, w2, s, x0, x1, x2, x3, x4, x5],
        dtype=tl.float32,
        is_pure=True,
        pack=4,
    )


@triton.jit
def _product_spelt_out(w0, w1, w2, s, x0, x1, x2, x3, x4, x5):
    N: tl.constexpr = w0.shape[0]
    low = tl.zeros([N, 8, 8], tl.float32)  # rows g by columns
    high = tl.zeros([N, 8, 8], tl.float32)  # rows g + 8
    scale_words = tl.max(tl.reshape(s, [N, 8, 4, 4]), 2)  # every quarter q holds the same
    is_tile = tl.arange(0, 4)[None, None, :]
    for tile in tl.static_range(3):
        w, a, b = (w0, x0, x3) if tile == 0 else ((w1, x1, x4) if tile == 1 else (w2, x2, x5))
        w = tl.reshape(w, [N, 8, 4, 2, 2])  # g q block pair
        x = tl.reshape(tl.join(a, b), [N, 8, 4, 2, 2, 2])  # column q pair late block
        x = tl.join(x & 0xFFFF, (x >> 16) & 0xFFFF)
        x = _floats(tl.reshape(tl.permute(x, [0, 1, 5, 2, 3, 4, 6]), [N, 1, 8, 2, 32]))
        odd = w >> 16
        early = tl.join(w & 0x8E00, odd & 0x8E00)
        late = tl.join(
            ((w << 1) & 0x8000) | ((w << 6) & 0x0E00), ((odd << 1) & 0x8000) | ((odd << 6) & 0x0E00)
        )
        low_products = tl.sum(_rows(early, late, N) * x, 4)
        early = tl.join((w << 3) & 0x8E00, (odd << 3) & 0x8E00)
        late = tl.join(
            ((w << 2) & 0x8000) | ((w << 9) & 0x0E00), ((odd << 2) & 0x8000) | ((odd << 9) & 0x0E00)
        )
        high_products = tl.sum(_rows(early, late, N) * x, 4)
        scale = tl.sum(tl.where(is_tile == tile, scale_words, 0), 2)  # (n, 8)
        low += tl.sum(low_products * _powers(scale, scale >> 16, N), 3)
        high += tl.sum(high_products * _powers(scale >> 8, scale >> 24, N), 3)
    out = tl.join(tl.reshape(low, [N, 8, 4, 2]), tl.reshape(high, [N, 8, 4, 2]))
    return tl.reshape(tl.permute(out, [0, 1, 2, 4, 3]), [N, 128])


@triton.jit
def _rows(early, late, N: tl.constexpr):
    """fp16 bits (n, g, q, block, pair, half), inputs 0, 1 and 2, 3 -> (n, g, 1, block, 32)."""
    bits = tl.permute(tl.join(early, late), [0, 1, 3, 2, 4, 6, 5])
    return _floats(tl.reshape(bits, [N, 8, 1, 2, 32]))


@triton.jit
def _floats(bits):
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _powers(first, second, N: tl.constexpr):
    """2 ** (byte - 127) of two blocks: (n, 8) -> (n, 8, 1, 2)."""
    powers = ((tl.join(first, second) & 0xFF) << 23).to(tl.float32, bitcast=True)
    return tl.reshape(powers, [N, 8, 1, 2])
