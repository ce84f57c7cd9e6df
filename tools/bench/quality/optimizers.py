# SPDX-License-Identifier: Apache-2.0
"""Optimizers on flat weights [seeds, values]. Each turns a gradient into the update that the learning rate
multiplies."""

from __future__ import annotations

from typing import Callable, Dict

import torch

from model import Layout

Tensor = torch.Tensor


class Optimizer:
    rate = 0.0  # the usual peak rate
    weight_decay = 0.1  # of matrices, times the learning rate

    def __init__(self, layout: Layout, like: Tensor) -> None:
        self.layout, self.steps = layout, 0
        self.m = torch.zeros_like(like)

    def update(self, g: Tensor) -> Tensor:
        raise NotImplementedError


class AdamW(Optimizer):
    rate = 1e-3

    def __init__(self, layout: Layout, like: Tensor) -> None:
        super().__init__(layout, like)
        self.v = torch.zeros_like(like)

    def update(self, g: Tensor) -> Tensor:
        self.steps += 1
        self.m.lerp_(g, 0.1)
        self.v.mul_(0.95).addcmul_(g, g, value=0.05)
        return (self.m / (1 - 0.9**self.steps)) / ((self.v / (1 - 0.95**self.steps)).sqrt_().add_(1e-8))


class Lion(Optimizer):
    rate = 5e-4

    def update(self, g: Tensor) -> Tensor:
        u = torch.lerp(self.m, g, 0.05).sign_()  # Chen et al. 2023, betas 0.95 and 0.98
        self.m.lerp_(g, 0.02)
        return u


class SGD(Optimizer):
    rate = 0.3
    weight_decay = 0.0

    def update(self, g: Tensor) -> Tensor:
        self.m.mul_(0.9).add_(g)
        return self.m.clone()


def orthogonal(x: Tensor) -> Tensor:
    """Return nearly U V^T of each matrix of [..., rows, columns]: five steps of Newton and Schulz (Jordan
    et al. 2024)."""
    turned = x.shape[-2] > x.shape[-1]
    x = x.transpose(-1, -2) if turned else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.transpose(-1, -2) if turned else x


class Muon(AdamW):
    """Muon for matrices of the blocks, with the size of AdamW's updates (Liu et al. 2025), AdamW for the
    rest."""

    def __init__(self, layout: Layout, like: Tensor) -> None:
        super().__init__(layout, like)
        self.momentum = torch.zeros_like(like)

    def update(self, g: Tensor) -> Tensor:
        u = super().update(g)
        self.momentum.mul_(0.95).add_(g)
        nesterov = g + 0.95 * self.momentum
        for p in self.layout.parts:
            if p.kind == "matrix":
                part = slice(p.first, p.first + p.count)
                o = orthogonal(nesterov[:, part].view(-1, *p.shape))
                u[:, part] = (o * (0.2 * max(p.shape) ** 0.5)).reshape(len(g), -1)
        return u


OPTIMIZERS: Dict[str, Callable[[Layout, Tensor], Optimizer]] = {
    "adamw": AdamW,
    "muon": Muon,
    "lion": Lion,
    "sgd": SGD,
}
