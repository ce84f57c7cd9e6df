# SPDX-License-Identifier: Apache-2.0
"""Text of Debian packages, with whole files held out."""

from __future__ import annotations

import glob
import hashlib
import os
from typing import List, NamedTuple, Tuple

import torch

# package: its texts
SOURCES = {
    "perl-doc": "/usr/share/perl/*/pod/*.pod",
    "python3-doc": "/usr/share/doc/python3*/html/_sources/**/*.rst.txt",
}
HELD = 12  # a file in so many is held out, by the hash of its name


class Text(NamedTuple):
    train: torch.Tensor  # bytes
    held: torch.Tensor
    files: int
    held_files: int
    digest: str


def paths(folder: str = "") -> List[str]:
    """Return the files of a folder, or of the packages. SystemExit names a package that is missing."""
    if folder:
        found = [
            p for p in sorted(glob.glob(os.path.join(folder, "**"), recursive=True)) if os.path.isfile(p)
        ]
        if not found:
            raise SystemExit(f"quality.py: --text {folder}: there are no files in it")
        return found
    found, missing = [], []
    for package, pattern in SOURCES.items():
        here = [p for p in sorted(glob.glob(pattern, recursive=True)) if os.path.isfile(p)]
        found += here
        if not here:
            missing.append(package)
    if missing:
        raise SystemExit(
            f"quality.py: the text of {' and '.join(missing)} is missing: apt-get install "
            f"{' '.join(missing)}, or give --text FOLDER"
        )
    return found


def read(folder: str = "") -> Text:
    train: List[bytes] = []
    held: List[bytes] = []
    counts, seen, digest = [0, 0], set(), hashlib.sha256()
    for path in paths(folder):
        real = os.path.realpath(path)
        if real in seen:
            continue
        seen.add(real)
        with open(path, "rb") as f:
            data = f.read()
        name = os.path.basename(path)
        out = hashlib.sha256(name.encode()).digest()[0] % HELD == 0
        (held if out else train).append(data)
        counts[out] += 1
        digest.update(name.encode() + hashlib.sha256(data).digest())
    if not held or not train:
        raise SystemExit(f"quality.py: {sum(counts)} files are too few to hold out one in {HELD}")
    a, b = (torch.frombuffer(bytearray(b"\n".join(x)), dtype=torch.uint8) for x in (train, held))
    return Text(a, b, counts[0], counts[1], digest.hexdigest()[:12])


def batch(data: torch.Tensor, draw: torch.Generator, shape: Tuple[int, ...], length: int) -> torch.Tensor:
    """Return random pieces of length + 1 bytes, as numbers: [*shape, length + 1]."""
    at = torch.randint(len(data) - length - 1, shape, generator=draw)
    return data[at[..., None] + torch.arange(length + 1)].long()
