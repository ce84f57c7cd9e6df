# SPDX-License-Identifier: Apache-2.0
"""The codec alone: values to coded bytes and back. docs/wire-format.md specifies the bytes."""
from __future__ import annotations

import ctypes
from typing import Optional

from . import _library
from ._arrays import TYPES, Array, View

CODECS = {"raw": 0, "int4": 1, "int6": 5, "int8": 2}


def _codec(name: str) -> int:
    if name not in CODECS:
        raise ValueError(f"codec {name}: it must be one of {', '.join(CODECS)}")
    return CODECS[name]


def encode_bound(codec: str, type: str, count: int) -> int:
    """Return the largest number of bytes that `count` values take."""
    return int(_library.get("nb_encode_bound")(_codec(codec), TYPES[type], count))


def encode(values: Array, codec: str = "int4", type: Optional[str] = None, first: int = 0) -> bytes:
    """Return the coded bytes of an array, the part of a rank's block that begins at value `first`."""
    view = View(values, type)
    room = ctypes.create_string_buffer(max(1, encode_bound(codec, view.type, view.count)))
    length = _library.call("nb_encode", _codec(codec), TYPES[view.type], view.address, view.count, first, None, room,
                           len(room), None)
    return room.raw[:length]


def decode(coded: bytes, out: Array, codec: str = "int4", type: Optional[str] = None, first: int = 0) -> Array:
    """Decode into the array `out`, which has as many values as were encoded. Return it."""
    view = View(out, type, writes=True)
    _library.call("nb_decode", _codec(codec), TYPES[view.type], ctypes.cast(ctypes.c_char_p(coded), ctypes.c_void_p),
                  len(coded), view.count, first, view.address)
    return out
