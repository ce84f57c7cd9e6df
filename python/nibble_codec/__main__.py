# SPDX-License-Identifier: Apache-2.0
"""python -m nibble_codec: which library this is, and what its codecs do to random values here."""
from __future__ import annotations

import argparse
import signal
import sys

from . import Cluster, __version__, decode, encode, library_path, version

VALUES = 1 << 18


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m nibble_codec", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("--version", action="version", version=f"nibble_codec {__version__}")
    parser.parse_args()
    print(f"nibble_codec {__version__}, library {library_path()} ({version()})")
    try:
        import numpy
    except ImportError:
        print("NumPy is missing, so nothing is tried: pip install numpy")
        return 1
    values = [numpy.random.default_rng(node).standard_normal(VALUES, dtype=numpy.float32) for node in range(4)]
    for codec in ("int4", "int6", "int8"):
        coded = encode(values[0], codec)
        error = decode(coded, numpy.empty_like(values[0]), codec) - values[0]
        print(f"{codec}: {8 * len(coded) / VALUES:.2f} bits a value, NMSE {float((error ** 2).sum() / (values[0] ** 2).sum()):.2g}")
    with Cluster(4, {"WARMUP_STEPS": 0}) as cluster:
        exact, delivered = numpy.sum(values, axis=0, dtype=float), cluster.all_reduce(values)[0]
        error = float(((delivered - exact) ** 2).sum() / (exact ** 2).sum())
        print(f"all-reduce between 4 nodes: {32 * cluster.figures().ratio:.2f} bits a value, NMSE {error:.2g}")
    print("next: python -m nibble_codec.example --help (needs PyTorch)")
    return 0


signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end as other programs do when nobody reads on
sys.exit(main())
