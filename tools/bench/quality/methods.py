# SPDX-License-Identifier: Apache-2.0
"""The arms: how gradients of N nodes become a sum, and weights reach the nodes. Each rival is written from
its paper.

sum(g) takes gradients [seeds, nodes, values] and returns their sum [seeds, values] as the nodes get it.
`bits` is the number of bits a value on the wire of a reduce-scatter, for all-reduces the mean of its two
halves. weights(w, model) returns the weights that the nodes compute with, from the optimizer's, and those
they have.

Own contributions stay exact where a method has no transport of its own (nibble, NVFP4, int4, FP8).
SDP4Bit, qgZ and LoCo code every contribution, as their implementations do.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

import wire
from model import Layout

Tensor = torch.Tensor


class Method:
    bits = 16.0  # exact sums are counted as BF16, which jobs send
    weight_bits: Optional[float] = None  # None: exact

    def __init__(self, layout: Layout, nodes: int, seeds: int, device: torch.device) -> None:
        self.layout, self.nodes, self.seeds, self.device, self.step = layout, nodes, seeds, device, 0
        self.draw = torch.Generator(device=device).manual_seed(20261126)

    def sum(self, g: Tensor) -> Tensor:
        """The exact sum."""
        return g.sum(1)

    def weights(self, w: Tensor, model: Tensor) -> Tensor:
        return w

    def close(self) -> None:
        pass

    def random(self, like: Tensor) -> Tensor:
        return torch.rand(like.shape, generator=self.draw, device=self.device)


# ---- nibble ----------------------------------------------------------------------------------------------


class Nibble(Method):
    """nibble itself. On the CPU the plugin's nodes of libnibble-codec.so carry out the operation, if the
    library is found (`library`), else, and on a GPU, wire.py computes the same bits."""

    library = True

    def __init__(
        self,
        layout: Layout,
        nodes: int,
        seeds: int,
        device: torch.device,
        path: str = "rs",
        feedback: str = "full",
        second: str = "int6",
    ) -> None:
        super().__init__(layout, nodes, seeds, device)
        self.path, self.feedback, self.second = path, feedback, second
        self.block = layout.size // nodes
        self.clusters: List[Any] = []
        if self.library and device.type == "cpu":
            self.open()
        self.coder, self.coder2 = wire.Coder(feedback), wire.Coder(feedback, second)
        self.total_bits = self.total_values = 0

    def open(self) -> None:
        try:
            from nibble_codec import Cluster
        except ImportError:
            return
        settings = {
            "WARMUP_STEPS": 0,
            "EF": self.feedback,
            "SECOND_HOP": self.second,
            "RS": "int4",
            "AR": "int4",
            "SCHEDULE": "two-hop" if self.path == "two-hop" else "direct",
        }
        self.clusters = [Cluster(self.nodes, settings) for _ in range(self.seeds)]

    def close(self) -> None:
        for cluster in self.clusters:
            cluster.close()
        self.clusters = []

    def sum(self, g: Tensor) -> Tensor:
        if self.clusters:
            return self.by_library(g)
        blocks = g.view(self.seeds, self.nodes, self.nodes, self.block)  # node, block
        if self.path == "two-hop":
            out = self.two_hop(blocks)
        else:
            out = self.direct(blocks)
            if self.path == "ar":
                coded = self.coder2(out)
                self.count(coded.bits * (self.nodes - 1), out.numel() * (self.nodes - 1))
                out = wire.decode(coded, self.block)
        return out.reshape(self.seeds, -1)

    def count(self, bits: int, values: int) -> None:
        self.total_bits += bits
        self.total_values += values
        self.bits = self.total_bits / self.total_values

    def direct(self, blocks: Tensor) -> Tensor:
        """Every other node's contribution is coded; the owner adds its own."""
        n = self.nodes
        owner = torch.arange(n)
        others = torch.tensor([[i for i in range(n) if i != b] for b in range(n)])
        sent = blocks[:, others, owner[:, None]]
        coded = self.coder(sent)
        self.count(coded.bits, sent.numel())
        return wire.total(coded, self.block, blocks[:, owner, owner])

    def two_hop(self, blocks: Tensor) -> Tensor:
        """Each of the other nodes sums a share of a block and codes the sum for the owner. The plugin's
        shares are cut from NCCL's windows; here a share is a run of groups."""
        n, groups = self.nodes, self.block // wire.GROUP
        share = torch.div(torch.arange(groups) * (n - 1), groups, rounding_mode="floor").repeat_interleave(
            wire.GROUP
        )
        out = torch.empty(self.seeds, n, self.block, device=self.device)
        sent, relayed, where = [], [], []
        for owner in range(n):
            for r in range(n - 1):
                relay = [i for i in range(n) if i != owner][r]
                at = torch.nonzero(share == r).flatten().to(self.device)
                where.append((owner, at))
                sent.append(blocks[:, [i for i in range(n) if i not in (owner, relay)], owner][..., at])
                relayed.append(blocks[:, relay, owner][..., at])
        longest = -(-max(len(at) for _, at in where) // wire.GROUP) * wire.GROUP
        pad = lambda x: torch.nn.functional.pad(x, (0, longest - x.shape[-1]))  # noqa: E731
        first = torch.stack([pad(x) for x in sent], 1)
        own = torch.stack([pad(x) for x in relayed], 1)
        coded = self.coder(first)
        self.count(coded.bits, sum(x.numel() for x in sent))
        partial = wire.total(coded, longest, own)
        coded = self.coder2(partial)
        self.count(coded.bits, sum(x.numel() for x in relayed))
        decoded = wire.decode(coded, longest)
        for i, (owner, at) in enumerate(where):
            out[:, owner, at] = decoded[:, i, : len(at)] + blocks[:, owner, owner][:, at]
        return out

    def by_library(self, g: Tensor) -> Tensor:
        out = torch.empty(self.seeds, self.layout.size)
        for s, cluster in enumerate(self.clusters):
            if self.path == "ar":
                out[s] = cluster.all_reduce(list(g[s]))[0]
            else:
                cluster.reduce_scatter(
                    list(g[s]), [out[s, i * self.block :][: self.block] for i in range(self.nodes)]
                )
        figures = self.clusters[0].figures("all_reduce" if self.path == "ar" else "reduce_scatter")
        self.bits = 32 * figures.ratio
        return out


# ---- quantizers of the rivals ----------------------------------------------------------------------------


def uniform(x: Tensor, group: int, levels: int, top: int, noise: Optional[Tensor] = None) -> Tensor:
    """Quantize groups of the last dimension to integers of scale absmax / levels, at most `top`: to the
    nearest, or with noise in [0, 1) stochastically. Return the decoded values."""
    v = x.reshape(*x.shape[:-1], -1, group)
    s = v.abs().amax(-1, keepdim=True) / levels
    q = v / torch.where(s > 0, s, 1.0)
    q = torch.round(q) if noise is None else torch.floor(q + noise.view(v.shape))
    return (q.clamp(-levels, top) * s).view(x.shape)


class SDP4Bit(Method):
    """Jia et al. 2024: gradients with a 32-point Hadamard transform, 15 levels, stochastic rounding, an
    FP32 scale for 128 values; weights as 4-bit differences from what the nodes hold, an FP32 scale for
    2048. One GPU a node, so no INT8 stage."""

    def __init__(
        self,
        layout: Layout,
        nodes: int,
        seeds: int,
        device: torch.device,
        gradients: bool = True,
        differences: bool = True,
    ) -> None:
        super().__init__(layout, nodes, seeds, device)
        self.gradients = gradients
        self.bits = 4 + 32 / 128 if gradients else 16.0
        self.weight_bits = 4 + 32 / 2048 if differences else None

    def sum(self, g: Tensor) -> Tensor:
        if not self.gradients:
            return g.sum(1)
        y = wire.hadamard(g.reshape(-1, 32)).view(g.shape)
        total = uniform(y, 128, 7, 7, self.random(y)).sum(1)
        return wire.hadamard(total.view(-1, 32)).view(total.shape) / 32

    def weights(self, w: Tensor, model: Tensor) -> Tensor:
        if self.weight_bits is None:
            return w
        d = w - model
        return model + uniform(d, 2048, 7, 7, self.random(d))


class QgZ(Method):
    """ZeRO++ (Wang et al. 2023): 16 levels of absmax / 8, nearest, an FP32 scale for 2048 values."""

    bits = 4 + 32 / 2048

    def sum(self, g: Tensor) -> Tensor:
        return uniform(g, 2048, 8, 7).sum(1)


class LoCo(Method):
    """Xie et al. 2024, as DeepSpeed has it: the quantizer of qgZ with an FP32 scale for 64 values, a
    moving average (0.8) of errors that is kept in 8 bits and dropped every 1024 steps."""

    bits = 4 + 32 / 64
    beta, reset = 0.8, 1024

    def __init__(self, layout: Layout, nodes: int, seeds: int, device: torch.device) -> None:
        super().__init__(layout, nodes, seeds, device)
        self.error = torch.zeros(seeds, nodes, layout.size, device=device)

    def sum(self, g: Tensor) -> Tensor:
        self.step += 1
        h = g + self.error
        q = uniform(h, 64, 8, 7)
        self.error = uniform(self.beta * self.error + (1 - self.beta) * (h - q), 64, 127, 127)
        if self.step % self.reset == 0:
            self.error.zero_()
        return q.sum(1)


class Format(Method):
    """A number format under nibble's transport: the other nodes' contributions are coded, with or without
    feedback."""

    def __init__(
        self, layout: Layout, nodes: int, seeds: int, device: torch.device, feedback: bool = False
    ) -> None:
        super().__init__(layout, nodes, seeds, device)
        self.error = torch.zeros(seeds, nodes, layout.size, device=device) if feedback else None
        owner = torch.arange(layout.size, device=device) // (layout.size // nodes)
        self.own = owner[None] == torch.arange(nodes, device=device)[:, None]

    def quantize(self, h: Tensor) -> Tensor:
        raise NotImplementedError

    def sum(self, g: Tensor) -> Tensor:
        h = g if self.error is None else g + self.error
        q = torch.where(self.own, g, self.quantize(h))
        if self.error is not None:
            self.error = torch.where(self.own, 0.0, h - q)
        return q.sum(1)


class NVFP4(Format):
    """E2M1 values, an E4M3 scale for 16 of them, an FP32 scale for a node's vector (NVIDIA 2025), to the
    nearest."""

    bits = 4 + 8 / 16

    def quantize(self, h: Tensor) -> Tensor:
        grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=h.device)
        whole = h.abs().amax(-1, keepdim=True) / (6 * 448)
        whole = torch.where(whole > 0, whole, 1.0)[..., None]
        v = h.view(*h.shape[:-1], -1, 16)
        s = (v.abs().amax(-1, keepdim=True) / 6 / whole).to(torch.float8_e4m3fn).to(torch.float32) * whole
        x = v / torch.where(s > 0, s, 1.0)
        at = torch.bucketize(x.abs().clamp(max=6.0), (grid[1:] + grid[:-1]) / 2)
        return (grid[at] * x.sign() * s).view(h.shape)


class Int4(Format):
    """15 levels of absmax / 7, nearest, a BF16 scale for 32 values."""

    bits = 4 + 16 / 32

    def quantize(self, h: Tensor) -> Tensor:
        v = h.view(*h.shape[:-1], -1, 32)
        s = (v.abs().amax(-1, keepdim=True) / 7).to(torch.bfloat16).to(torch.float32)
        return (torch.round(v / torch.where(s > 0, s, 1.0)).clamp(-7, 7) * s).view(h.shape)


class FP8(Format):
    """E4M3 with an FP32 scale for 2048 values."""

    bits = 8 + 32 / 2048

    def quantize(self, h: Tensor) -> Tensor:
        v = h.view(*h.shape[:-1], -1, 2048)
        s = v.abs().amax(-1, keepdim=True) / 448
        return ((v / torch.where(s > 0, s, 1.0)).to(torch.float8_e4m3fn).to(torch.float32) * s).view(h.shape)


class PowerSGD(Method):
    """Vogels et al. 2019: rank-4 factors of each matrix, all-reduced in FP32, with feedback and a warm
    start. Vectors are exact."""

    rank = 4

    def __init__(self, layout: Layout, nodes: int, seeds: int, device: torch.device) -> None:
        super().__init__(layout, nodes, seeds, device)
        self.error = torch.zeros(seeds, nodes, layout.size, device=device)
        self.q: Dict[str, Tensor] = {}
        for p in layout.parts:
            if len(p.shape) == 2:
                self.q[p.name] = torch.randn(seeds, p.shape[1], self.rank, generator=self.draw, device=device)
        self.bits = 32 * sum(self.sent(p.shape) for p in layout.parts) / layout.values

    @classmethod
    def sent(cls, shape: Tuple[int, ...]) -> int:
        """Return the number of values that are sent for a tensor."""
        return cls.rank * sum(shape) if len(shape) == 2 else shape[0]

    def sum(self, g: Tensor) -> Tensor:
        out = g.sum(1)
        for part in self.layout.parts:
            if part.name not in self.q:
                continue
            at = slice(part.first, part.first + part.count)
            m = (g[:, :, at] + self.error[:, :, at]).view(self.seeds, self.nodes, *part.shape)
            mean = m.mean(1)
            p, _ = torch.linalg.qr(mean @ self.q[part.name])
            q = mean.transpose(1, 2) @ p
            self.q[part.name] = q
            low = p @ q.transpose(1, 2)
            self.error[:, :, at] = (m - low[:, None]).flatten(2)
            out[:, at] = self.nodes * low.flatten(1)
        return out


class TopK(Method):
    """The largest sixteenth of each node's values, as FP32 with a 32-bit index, with feedback (Stich et
    al. 2018)."""

    share = 16
    bits = 64 / share

    def __init__(self, layout: Layout, nodes: int, seeds: int, device: torch.device) -> None:
        super().__init__(layout, nodes, seeds, device)
        self.error = torch.zeros(seeds, nodes, layout.size, device=device)

    def sum(self, g: Tensor) -> Tensor:
        h = g + self.error
        at = h.abs().topk(self.layout.values // self.share, -1, sorted=False).indices
        q = torch.zeros_like(h).scatter_(-1, at, h.gather(-1, at))
        self.error = h - q
        return q.sum(1)


class DynamiQ(Method):
    """After Han et al. 2026: 2, 4 or 8 bits for each 256 values by their energy, 8-bit scales for 16
    values under one for 256, correlated stochastic rounding, partial sums coded again on every hop of a
    ring, 5 bits a value. Their levels are not uniform; these are."""

    bits = 5.0
    wide = 256

    def sum(self, g: Tensor) -> Tensor:
        shared = self.random(g[:, 0])
        order = torch.randperm(self.nodes, generator=self.draw, device=self.device)
        partial = g[:, 0]
        for hop in range(self.nodes):  # N - 1 hops of the ring, and the sum on its way to all
            noise = (shared + order[hop] / self.nodes) % 1.0
            partial = self.quantize(partial, noise)
            if hop + 1 < self.nodes:
                partial = partial + g[:, hop + 1]
        return partial

    def widths(self, energy: Tensor) -> Tensor:
        """Return bits of each 256 values, [.., groups]: their mean is what 5 bits leave after the scales."""
        goal = self.bits - 8 / 16 - 16 / self.wide
        low = torch.full_like(energy[..., :1], -60.0)
        high = torch.full_like(low, 60.0)
        log = torch.log2(energy.clamp(min=1e-30))
        for _ in range(24):
            mid = (low + high) / 2
            w = 2.0 + 2.0 * (log > mid) + 4.0 * (log > mid + 5)
            over = w.mean(-1, keepdim=True) > goal
            low, high = torch.where(over, mid, low), torch.where(over, high, mid)
        return 2.0 + 2.0 * (log > high) + 4.0 * (log > high + 5)

    def quantize(self, x: Tensor, noise: Tensor) -> Tensor:
        v = x.reshape(x.shape[0], -1, 16, 16)
        w = self.widths(v.square().sum((-1, -2)))[..., None, None]
        levels = 2.0 ** (w - 1) - 1
        top = v.abs().amax((-1, -2), keepdim=True).to(torch.bfloat16).to(torch.float32) * 1.01
        s = (
            torch.ceil(v.abs().amax(-1, keepdim=True) / torch.where(top > 0, top, 1.0) * 255)
            / 255
            * top
            / levels
        )
        q = torch.floor(v / torch.where(s > 0, s, 1.0) + noise.view(v.shape))
        return (torch.maximum(torch.minimum(q, levels), -levels) * s).view(x.shape)


# ---- the arms --------------------------------------------------------------------------------------------

Make = Callable[..., Method]


class Arm:
    def __init__(self, title: str, make: Make, **options: Any) -> None:
        self.title, self.make, self.options = title, make, options
        self.all_reduce = make in (PowerSGD, DynamiQ) or options.get("path") == "ar"

    def __call__(self, layout: Layout, nodes: int, seeds: int, device: torch.device) -> Method:
        return self.make(layout, nodes, seeds, device, **self.options)


ARMS: Dict[str, Arm] = {
    "exact": Arm("exact", Method),
    "nibble": Arm("nibble, reduce-scatter", Nibble),
    "nibble-ema": Arm("nibble, reduce-scatter, feedback ema", Nibble, feedback="ema"),
    "nibble-off": Arm("nibble, reduce-scatter, no feedback", Nibble, feedback="off"),
    "nibble-ar": Arm("nibble, all-reduce", Nibble, path="ar"),
    "nibble-ar-ema": Arm("nibble, all-reduce, feedback ema", Nibble, path="ar", feedback="ema"),
    "nibble-ar-off": Arm("nibble, all-reduce, no feedback", Nibble, path="ar", feedback="off"),
    "nibble-ar4": Arm("nibble, all-reduce, second hop 4 bits", Nibble, path="ar", second="int4"),
    "nibble-ar8": Arm("nibble, all-reduce, second hop 8 bits", Nibble, path="ar", second="int8"),
    "nibble-2hop": Arm("nibble, two-hop reduce-scatter", Nibble, path="two-hop"),
    "nibble-2hop4": Arm("nibble, two-hop, second hop 4 bits", Nibble, path="two-hop", second="int4"),
    "nibble-2hop8": Arm("nibble, two-hop, second hop 8 bits", Nibble, path="two-hop", second="int8"),
    "sdp4bit": Arm("SDP4Bit, gradients", SDP4Bit, differences=False),
    "sdp4bit-w": Arm("SDP4Bit, weights", SDP4Bit, gradients=False),
    "sdp4bit-both": Arm("SDP4Bit, gradients and weights", SDP4Bit),
    "loco": Arm("LoCo, groups of 64", LoCo),
    "qgz": Arm("qgZ (ZeRO++)", QgZ),
    "nvfp4": Arm("NVFP4, feedback", NVFP4, feedback=True),
    "int4": Arm("int4 absmax", Int4),
    "fp8": Arm("FP8 E4M3", FP8),
    "powersgd": Arm("PowerSGD, rank 4", PowerSGD),
    "topk": Arm("top-k, 1/16, feedback", TopK),
    "dynamiq": Arm("DynamiQ-like, ring", DynamiQ),
}
