# SPDX-License-Identifier: Apache-2.0
"""A byte-level GPT for many sets of weights at once: each of M models computes its own batch in the same
batched products.

Weights are one flat vector a model, [M, values], so that gradients come as the flat buffers that data
parallelism sums.
"""

from __future__ import annotations

import math
from typing import Dict, List, NamedTuple, Tuple

import torch
from torch.nn import functional as F

Tensor = torch.Tensor
SYMBOLS = 256


class Part(NamedTuple):
    name: str
    shape: Tuple[int, ...]
    kind: str  # matrix, embedding, head, layernorm, bias
    first: int
    count: int


class Layout:
    """Places of the parameters in the flat vector, whose length is a multiple of `multiple`."""

    def __init__(self, width: int, layers: int, context: int, multiple: int) -> None:
        self.width, self.layers, self.context, self.heads = width, layers, context, max(1, width // 32)
        self.parts: List[Part] = []
        w = width
        self._add("token", (SYMBOLS, w), "embedding")
        self._add("place", (context, w), "embedding")
        for i in range(layers):
            for name, shape, kind in (
                ("ln1.w", (w,), "layernorm"),
                ("ln1.b", (w,), "layernorm"),
                ("qkv", (w, 3 * w), "matrix"),
                ("qkv.b", (3 * w,), "bias"),
                ("out", (w, w), "matrix"),
                ("out.b", (w,), "bias"),
                ("ln2.w", (w,), "layernorm"),
                ("ln2.b", (w,), "layernorm"),
                ("fc", (w, 4 * w), "matrix"),
                ("fc.b", (4 * w,), "bias"),
                ("proj", (4 * w, w), "matrix"),
                ("proj.b", (w,), "bias"),
            ):
                self._add(f"{i}.{name}", shape, kind)
        self._add("ln.w", (w,), "layernorm")
        self._add("ln.b", (w,), "layernorm")
        self._add("head", (SYMBOLS, w), "head")  # as torch.nn.Linear stores it: a group has one symbol
        last = self.parts[-1]
        self.values = last.first + last.count
        self.size = -(-self.values // multiple) * multiple

    def _add(self, name: str, shape: Tuple[int, ...], kind: str) -> None:
        first = self.parts[-1].first + self.parts[-1].count if self.parts else 0
        self.parts.append(Part(name, shape, kind, first, math.prod(shape)))

    def initial(self, seed: int) -> Tensor:
        """Return the first weights of a seed."""
        draw = torch.Generator().manual_seed(seed)
        flat = torch.zeros(self.size)
        for p in self.parts:
            part = flat[p.first : p.first + p.count]
            if p.name.endswith(".w"):
                part.fill_(1.0)
            elif p.kind == "head":
                values = torch.randn(p.count, generator=draw).view(self.width, SYMBOLS) * self.width**-0.5
                part.copy_(values.t().reshape(-1))
            elif p.kind in ("matrix", "embedding"):
                deep = math.sqrt(2 * self.layers) if p.name.endswith((".out", ".proj")) else 1.0
                part.copy_(
                    torch.randn(p.count, generator=draw)
                    * (0.02 if p.kind == "embedding" else p.shape[0] ** -0.5 / deep)
                )
        return flat

    def views(self, flat: Tensor) -> Dict[str, Tensor]:
        return {
            p.name: flat[:, p.first : p.first + p.count].view(flat.shape[0], *p.shape) for p in self.parts
        }


def losses(layout: Layout, p: Dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Return the mean loss of each model, [M], on its tokens [M, batch, length + 1]. p: parameters, as
    Layout.views has them."""
    m, batch, length = tokens.shape[0], tokens.shape[1], tokens.shape[2] - 1
    w, heads = layout.width, layout.heads
    x, y = tokens[..., :-1], tokens[..., 1:]
    base = torch.arange(m, device=tokens.device)[:, None, None] * SYMBOLS
    h = F.embedding(x + base, p["token"].reshape(m * SYMBOLS, w)) + p["place"][:, None, :length]
    h = h.view(m, batch * length, w)

    def norm(v: Tensor, name: str) -> Tensor:
        return F.layer_norm(v, (w,)) * p[name + ".w"][:, None] + p[name + ".b"][:, None]

    def linear(v: Tensor, name: str) -> Tensor:
        return torch.baddbmm(p[name + ".b"][:, None].to(v.dtype), v, p[name])

    for i in range(layout.layers):
        q, k, v = (
            linear(norm(h, f"{i}.ln1"), f"{i}.qkv")
            .view(m * batch, length, 3, heads, w // heads)
            .permute(2, 0, 3, 1, 4)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + linear(a.transpose(1, 2).reshape(m, batch * length, w), f"{i}.out")
        h = h + linear(F.gelu(linear(norm(h, f"{i}.ln2"), f"{i}.fc"), approximate="tanh"), f"{i}.proj")
    logits = torch.bmm(norm(h, "ln"), p["head"].transpose(1, 2))
    each = F.cross_entropy(logits.float().view(-1, SYMBOLS), y.reshape(-1), reduction="none")
    return each.view(m, -1).mean(1)
