# SPDX-License-Identifier: Apache-2.0
"""nibble's gradient codec on tensors, for any device: the arithmetic of docs/wire-format.md, sections 5 to
11, to the bit.

A Coder encodes many rank blocks at once: a tensor [..., values] is a block for each of its first
dimensions, whose length is a multiple of 32. It keeps their residuals as the plugin does (8 bits a value,
a scale for 32). tests/python/test_quality.py compares values, residuals and bytes with the C library's. A
block's tiles are padded to 128 groups with groups of zeros, which change nothing.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Tuple

import torch

Tensor = torch.Tensor

GROUP, TILE_GROUPS = 32, 128
FLOOR, LIMIT = 2.0**-96, 2.0**100
BOUND = 0.2
BETA = 0.8
PAIRS = (
    [8 * e + i for e in range(4) for i in (0, 2, 4, 5)],
    [8 * e + i for e in range(4) for i in (1, 3, 6, 7)],
)
MOST_ESCAPES = {True: 3, False: 255}  # by int4


def pow2(exponent: Tensor) -> Tensor:
    """Return 2^exponent, exactly, for integers from -126 to 127."""
    return ((exponent + 127) << 23).to(torch.int32).view(torch.float32)


def bits_of(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int32)


def hadamard(v: Tensor) -> Tensor:
    """Return the unnormalised 32-point transform of the last dimension, in the order of the format's
    stages."""
    shape = v.shape
    for distance in (1, 16, 8, 4, 2):
        v = v.reshape(-1, GROUP // (2 * distance), 2, distance)
        a, b = v[:, :, 0], v[:, :, 1]
        v = torch.stack((a + b, a - b), 2)
    return v.reshape(shape)


def tile_sum(squares: Tensor) -> Tensor:
    """Sum [tiles, 128] values of groups in the format's order."""
    half = TILE_GROUPS // 2
    while half:
        squares = squares[:, :half] + squares[:, half : 2 * half]
        half //= 2
    return squares[:, 0]


def group_sum(x: Tensor) -> Tensor:
    """Sum the last dimension of 32 values in the format's order: distances 1, 16, 8, 4, 2."""
    x = x[..., 0::2] + x[..., 1::2]
    for half in (8, 4, 2, 1):
        x = x[..., :half] + x[..., half : 2 * half]
    return x[..., 0]


def scales(device: torch.device) -> Tensor:
    """Return T(c) of tiles that are not wide, and of wide ones: [2, 128]."""
    narrow = [0.0] + [2.0 ** (c - 23) for c in range(1, 8)]
    for first, size in ((8, 2), (16, 4), (32, 8), (64, 16)):
        top = {2: 15, 4: 11, 8: 7, 16: 3}[size]
        narrow += [
            2.0 ** -(top - (c - first) // size) * (1 + (c - first) % size / size)
            for c in range(first, 2 * first)
        ]
    wide = [0.0] + [2.0 ** (c - 126) for c in range(1, 128)]
    return torch.tensor([narrow, wide], dtype=torch.float32, device=device)


def scale_code(largest: Tensor, exponent: Tensor, int4: bool) -> Tensor:
    """Return the codes of group maxima, 0 for those too small, in tiles that are not wide."""
    bits = bits_of(largest)
    d, m = exponent - ((bits >> 23) - 127), bits & 0x7FFFFF
    k = (d >> 2).clamp(0, 4)
    s = 19 + k
    if int4:
        b = torch.where(k == 0, 1 << 18, 1 << 19)
    else:
        b = torch.ones_like(m)
    r = (m + (1 << s) - b) >> s
    code = torch.where(k < 4, (1 << (6 - k).clamp(min=0)) + (3 - d % 4) * (1 << (4 - k)) + r, 23 - d + r)
    return torch.where((d > 23) | (largest < FLOOR), 0, code)


def scale_code_wide(largest: Tensor, exponent: Tensor, int4: bool) -> Tensor:
    bits = bits_of(largest)
    up = (bits & 0x7FFFFF) >= (1 << 19 if int4 else 1)
    code = (126 - exponent + (bits >> 23) - 127 + up.to(torch.int32)).clamp(min=0)
    return torch.where(largest < FLOOR, 0, code)


class Coded(NamedTuple):
    """Decoded codes before the sum: [blocks, tiles x 128, 32]."""

    values: Tensor  # of the coded domain, exact where escaped
    transform: Tensor  # [blocks, tiles x 128]: the group's values are of the transform
    bits: int  # on the wire, all blocks


class _Tiles:
    """Some tiles during encoding: g, e and h are [tiles, 128, 32]."""

    def __init__(self, g: Tensor, e: Optional[Tensor], zero: Tensor, groups: Tensor, bits: int) -> None:
        self.g, self.zero, self.groups, self.bits, self.int4 = g, zero, groups, bits, bits == 4
        self.h = g if e is None else g + e
        self.escaped: Optional[Tensor] = None
        large = ~(self.h.abs() < LIMIT)  # a NaN, too
        if large.any():
            self.escape(large)
        self.find_outliers(5)
        self.choose()
        self.wide = torch.zeros(len(g), dtype=torch.bool, device=g.device)
        self.codes()

    def escape(self, where: Tensor) -> None:
        self.escaped = where if self.escaped is None else self.escaped | where
        self.h = torch.where(where, 0.0, self.h)

    def extremes(self) -> None:
        a = self.h.abs()
        self.largest = a.amax(-1)
        self.pair = torch.maximum(a[..., PAIRS[0]], a[..., PAIRS[1]]).amin(
            -1
        )  # the least of the pairs' larger magnitudes
        self.thin = self.pair < self.largest * 2.0**-8

    def find_outliers(self, members: int) -> None:
        """Escape values that would drown the rest of their group."""
        self.extremes()
        while True:
            at = torch.nonzero(self.thin if members == 5 else self.largest >= FLOOR, as_tuple=True)
            if not len(at[0]):
                return
            a = self.h[at].abs()
            edge = self.largest[at][:, None] * 2.0**-8
            small = (a >= FLOOR) & (a < edge)
            count, total = small.sum(-1), torch.zeros(len(a), dtype=torch.float32, device=a.device)
            for i in range(GROUP):
                total = total + torch.where(small[:, i], a[:, i], 0.0)
            out = (a >= edge) & (a * count[:, None] > (total * 1024.0)[:, None]) & (count >= members)[:, None]
            if not out.any():
                return
            where = torch.zeros_like(self.h, dtype=torch.bool)
            where[at] = out
            self.escape(where)
            self.extremes()

    def choose(self) -> None:
        """Choose each group's domain: self.y, self.transform, self.top (the maximum) and self.negative
        (its sign)."""
        high, low = self.h.amax(-1), self.h.amin(-1)
        top, self.negative, self.y = self.largest, -low > high, self.h
        self.transform = torch.zeros_like(self.zero)
        if self.int4:
            room = torch.minimum(high.clamp(min=0.0), (-low).clamp(min=0.0)) * float.fromhex("0x1.24924ap0")
            flat = self.pair > top * 0.875
            top = torch.where(self.thin | flat, torch.maximum(top, room), top)
            y = hadamard(self.h)
            factor = torch.full_like(top, 64.0) / 32.0
            if self.thin.any():
                small = (self.h.abs() < (self.largest * 2.0**-8)[..., None]).sum(-1)
                factor = torch.where(
                    self.thin, torch.full_like(top, 64.0) / (32 - small).to(torch.float32), factor
                )
            y_high, y_low = y.amax(-1), y.amin(-1)
            y_top = torch.maximum(y_high, -y_low) * 0.125
            self.transform = (y_top * factor.sqrt() < top) & ~self.zero
            if self.escaped is not None:
                self.transform &= ~self.escaped.any(-1)
            top = torch.where(self.transform, y_top, top)
            self.negative = torch.where(self.transform, -y_low > y_high, self.negative)
            self.y = torch.where(self.transform[..., None], y, self.h)
        self.top = top
        most = bits_of(top.amax(-1))
        exponent = (most >> 23) - 127 + ((most & 0x7FFFFF) > 0x780000).to(torch.int32)
        self.exponent = torch.where(top.amax(-1) < FLOOR, -96, exponent)

    def codes(self) -> None:
        e = self.exponent[:, None]
        self.code = torch.where(
            self.wide[:, None], scale_code_wide(self.top, e, self.int4), scale_code(self.top, e, self.int4)
        )

    def spread(self) -> Tensor:
        """Return the tiles with a group above the floor that has no code."""
        return ((self.top >= FLOOR) & (self.code == 0)).any(-1)

    def widen(self) -> None:
        """Escape outliers of any number, and use wide scales where groups still lack a code."""
        self.find_outliers(1)
        self.choose()
        self.codes()
        self.wide = self.spread()
        self.codes()

    def escapes(self) -> Tensor:
        return self.groups * 0 if self.escaped is None else self.escaped.sum((-1, -2)).to(torch.int32)

    def body(self) -> Tensor:
        g = self.groups
        return (g + 3) // 4 * 4 + (4 * ((g + 31) // 32) if self.int4 else 0) + 4 * self.bits * g

    def too_long(self) -> Tensor:
        x = self.escapes()
        return (x > MOST_ESCAPES[self.int4]) | (8 * x + self.body() > 128 * self.groups)


def _take(tiles: _Tiles, out: List[Tensor], at: Optional[Tensor]) -> None:
    """Quantize tiles and write values, transform, error (before ema), bytes and escapes to positions `at`
    of `out`."""
    table = scales(tiles.g.device)
    unit = (
        table[tiles.wide.to(torch.int64)[:, None], tiles.code.to(torch.int64)] * pow2(tiles.exponent)[:, None]
    )
    if tiles.int4:
        step = torch.where(tiles.transform, unit, unit * 0.125)
        step = torch.where(tiles.negative, step, -step)
    else:
        step = unit * (131.0 / 4096.0 if tiles.bits == 6 else 129.0 / 16384.0)
    coded = tiles.code > 0
    transform = tiles.transform & coded
    y = torch.where(coded[..., None] | ~tiles.transform[..., None], tiles.y, tiles.h)
    low, high = {4: (-8.0, 7.0), 6: (-31.0, 31.0), 8: (-127.0, 127.0)}[tiles.bits]
    inverse = torch.where(coded, torch.ones_like(step) / torch.where(coded, step, 1.0), 0.0)
    values = torch.round(y * inverse[..., None]).clamp(low, high) * step[..., None]
    error = y - values
    values = values + 0.0
    length = 4 + 8 * tiles.escapes() + tiles.body()
    empty = (tiles.escapes() == 0) & ~coded.any(-1)
    length = torch.where(empty, 4, length)
    if tiles.escaped is not None:
        values = torch.where(tiles.escaped, tiles.g, values)
        error = torch.where(tiles.escaped, 0.0, error)
        if len(out) == 4:
            out.append(torch.zeros_like(out[0], dtype=torch.bool))
    escaped = (
        torch.zeros_like(values, dtype=torch.bool)
        if tiles.escaped is None and len(out) > 4
        else tiles.escaped
    )
    for place, part in zip(out, (values, transform, error, length, escaped)):
        if at is None:
            place.copy_(part)
        else:
            place[at] = part


def encode(g: Tensor, e: Optional[Tensor], groups: Tensor, bits: int) -> Tuple[List[Tensor], Tensor]:
    """Encode tiles g [tiles, 128, 32] with carried errors e. Return values, transform, error in the coded
    domain, bytes and, where there are any, escapes. The second result are the tiles that were sent raw."""
    zero = (g == 0).any(-1)
    out = [torch.empty_like(g), torch.empty_like(zero), torch.empty_like(g), torch.empty_like(groups)]
    raw = torch.zeros(len(g), dtype=torch.bool, device=g.device)
    tiles = _Tiles(g, e, zero, groups, bits)
    _take(tiles, out, None)

    def again(where: Tensor, as_bits: int, widen: bool) -> None:
        at = torch.nonzero(where).flatten()
        part = _Tiles(g[at], None if e is None else e[at], zero[at], groups[at], as_bits)
        if widen:
            spread = part.spread()
            if spread.any():
                again_at = at[spread]
                wide = _Tiles(
                    g[again_at], None if e is None else e[again_at], zero[again_at], groups[again_at], as_bits
                )
                wide.widen()
                _finish(wide, again_at, as_bits)
                at = at[~spread]
                part = _Tiles(g[at], None if e is None else e[at], zero[at], groups[at], as_bits)
        _finish(part, at, as_bits)

    def _finish(part: _Tiles, at: Tensor, as_bits: int) -> None:
        if not len(at):
            return
        _take(part, out, at)
        long = part.too_long()
        if not long.any():
            return
        if as_bits == 4:
            where = torch.zeros_like(raw)
            where[at[long]] = True
            again(where, 8, True)
            return
        raw[at[long]] = True
        for place, part in zip(out, (g[at[long]], False, 0.0, 0, False)):
            place[at[long]] = part
        out[3][at[long]] = 4 + 128 * groups[at[long]]

    special = tiles.spread() | tiles.too_long()
    if special.any():
        again(special, bits, True)
    return out, raw


class Coder:
    """Encode blocks [..., n], n a multiple of 32, with residuals of their own. feedback: "full", "ema" or
    "off"."""

    def __init__(self, feedback: str = "full", codec: str = "int4") -> None:
        self.feedback, self.bits = feedback, int(codec[3:])
        self.err: Optional[Tensor] = None  # int8 [tiles, 128, 32]
        self.scale: Optional[Tensor] = None  # int32 [tiles, 128]

    def __call__(self, x: Tensor) -> Coded:
        n = x.shape[-1]
        blocks, k = x.numel() // n, n // GROUP
        per_block = -(-k // TILE_GROUPS)
        g = torch.nn.functional.pad(x.reshape(blocks, n), (0, per_block * TILE_GROUPS * GROUP - n))
        g = g.view(blocks * per_block, TILE_GROUPS, GROUP)
        groups = torch.full((blocks, per_block), TILE_GROUPS, dtype=torch.int32, device=x.device)
        groups[:, -1] = k - (per_block - 1) * TILE_GROUPS
        groups = groups.view(-1)
        idle = (g == 0).all(-1)
        e = None
        if self.feedback != "off":
            e = self.carried(g, idle)
        (values, transform, error, length, *escaped), raw = encode(g, e, groups, self.bits)
        if e is not None:
            self.keep(e, error, transform, escaped[0] if escaped else None, raw, idle)
        shape = (*x.shape[:-1], per_block * TILE_GROUPS)
        return Coded(values.view(*shape, GROUP), transform.view(shape), 8 * int(length.sum()))

    def carried(self, g: Tensor, idle: Tensor) -> Tensor:
        """Return the residual as used: bounded, 0 in idle groups."""
        if self.err is None or self.scale is None:
            self.err = torch.zeros(g.shape, dtype=torch.int8, device=g.device)
            self.scale = torch.zeros(g.shape[:2], dtype=torch.int32, device=g.device)
        self.err = torch.where((g == 0) & ~idle[..., None], 0, self.err).to(torch.int8)
        err = self.err.to(torch.float32)
        unit = torch.where(self.scale >= 25, pow2(self.scale.clamp(25, 254) - 127), 0.0)
        gg = tile_sum(group_sum(torch.where(g.abs() < LIMIT, g * g, 0.0)))
        ee = err.square().sum(-1) * unit * unit
        ee = tile_sum(torch.where(idle, 0.0, ee))
        bound = torch.tensor(BOUND, dtype=torch.float32, device=g.device)
        over = ee > (bound * bound) * gg
        f = torch.where(over, bound * (gg / torch.where(over, ee, 1.0)).sqrt(), 1.0)
        unit = f[:, None] * unit
        unit = torch.where(unit < 2.0**-102, 0.0, unit)
        return torch.where(idle[..., None], 0.0, err * unit[..., None])

    def keep(
        self,
        e: Tensor,
        error: Tensor,
        transform: Tensor,
        escaped: Optional[Tensor],
        raw: Tensor,
        idle: Tensor,
    ) -> None:
        assert self.err is not None and self.scale is not None
        r = torch.where(transform[..., None], hadamard(error) * 0.03125, error)
        if self.feedback == "ema":
            beta = torch.tensor(BETA, dtype=torch.float32, device=e.device)
            r = beta * e + (1.0 - beta) * r
            if escaped is not None:
                r = torch.where(escaped, 0.0, r)
        top = r.abs().amax(-1)
        bits = bits_of(top) + 0x10000
        scale = (bits >> 23) - 6
        err = torch.round(r * pow2(127 - scale.clamp(min=1))[..., None])
        small = (top < FLOOR) | raw[:, None]
        err = torch.where(small[..., None], 0.0, err).to(torch.int8)
        self.err = torch.where(idle[..., None], self.err, err)
        self.scale = torch.where(idle, self.scale, torch.where(small, 0, scale))


def decode(coded: Coded, n: int) -> Tensor:
    """Return the values of each block, [..., n]."""
    v = torch.where(coded.transform[..., None], hadamard(coded.values) * 0.03125, coded.values) + 0.0
    return v.flatten(-2)[..., :n]


def total(coded: Coded, n: int, own: Optional[Tensor] = None) -> Tensor:
    """Sum coded blocks [..., sources, n] in the order of sources, then add `own` [..., n] (section 10)."""
    shape = (*coded.values.shape[:-3], *coded.values.shape[-2:])
    plain = torch.zeros(shape, device=coded.values.device)
    turned = torch.zeros(shape, device=coded.values.device)
    any_turned = coded.transform.any(-2)
    for i in range(coded.values.shape[-3]):
        v, t = coded.values[..., i, :, :], coded.transform[..., i, :, None]
        plain = torch.where(t, plain, plain + v)
        turned = torch.where(t, turned + v, turned)
    plain = torch.where(any_turned[..., None], plain + hadamard(turned) * 0.03125, plain)
    plain = plain.flatten(-2)[..., :n]
    return plain if own is None else plain + own
