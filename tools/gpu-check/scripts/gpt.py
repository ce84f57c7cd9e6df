# SPDX-License-Identifier: Apache-2.0
"""A small byte-level GPT and text to train it on."""
import glob
import os
import sysconfig

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Mlp(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Experts(nn.Module):
    """Every token goes to the two experts that its router likes best."""

    def __init__(self, width, inner, count=4):
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(Mlp(width, inner) for _ in range(count))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        weight, which = self.router(flat).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            token, place = (which == e).nonzero(as_tuple=True)
            out = out.index_add(0, token, expert(flat[token]) * weight[token, place, None])
        return out.view_as(x)


class Block(nn.Module):
    def __init__(self, width, heads, inner, experts):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Experts(width, inner) if experts else Mlp(width, inner)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, width, layers, heads, context, inner=None, vocabulary=256, experts=False, recompute=False):
        super().__init__()
        self.recompute = recompute
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, inner or 4 * width, experts) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def embed(self, ids):
        return self.token(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))

    def forward(self, ids, targets):
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.loss(x, targets)

    def loss(self, x, targets):
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), targets.reshape(-1))


class Text:
    """Python's own library as bytes; the last twentieth is held out."""

    def __init__(self, context, most=16 << 20):
        folder = sysconfig.get_paths()["stdlib"]
        data = bytearray()
        for name in sorted(glob.glob(os.path.join(folder, "*.py")) + glob.glob(os.path.join(folder, "*", "*.py"))):
            if "site-packages" in name or len(data) > most:
                continue
            with open(name, "rb") as f:
                data += f.read()
        if len(data) < 1 << 20:
            raise SystemExit(f"only {len(data)} bytes of Python source in {folder}")
        self.data = torch.frombuffer(data, dtype=torch.uint8)
        self.context = context
        self.split = len(data) * 19 // 20

    def batch(self, size, seed, device, held_out=False):
        g = torch.Generator().manual_seed(seed)
        low, high = (self.split, len(self.data)) if held_out else (0, self.split)
        at = torch.randint(low, high - self.context - 1, (size,), generator=g)
        rows = torch.stack([self.data[i:i + self.context + 1] for i in at.tolist()]).long().to(device)
        return rows[:, :-1], rows[:, 1:]
