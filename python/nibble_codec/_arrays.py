# SPDX-License-Identifier: Apache-2.0
"""Arrays as the library sees them: address, type and number of values, without a copy. NumPy arrays and PyTorch tensors in host
memory, contiguous. NumPy lacks bfloat16: use uint16 and name the type, or use ml_dtypes' type."""
from __future__ import annotations

from typing import Any, Optional

Array = Any  # a NumPy array or a tensor, which this module does not import for it

TYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


def is_tensor(array: Array) -> bool:
    return type(array).__module__.partition(".")[0] == "torch" or hasattr(array, "data_ptr")


class View:
    """Address, type ("float32" ...) and count of an array's values. Keeps the array alive."""

    def __init__(self, array: Array, type_name: Optional[str] = None, writes: bool = False) -> None:
        self.array = array
        if is_tensor(array):
            name = str(array.dtype).partition(".")[2]
            if array.device.type != "cpu":
                raise TypeError(f"a tensor on {array.device}: the library works in host memory, .cpu() copies it there")
            if not array.is_contiguous():
                raise ValueError("a tensor that is not contiguous")
            self.address: int = array.data_ptr()
            self.count: int = array.numel()
        else:
            interface = getattr(array, "__array_interface__", None)
            if interface is None:
                raise TypeError(f"{type(array).__name__} is neither a NumPy array nor a tensor")
            if not array.flags.c_contiguous:
                raise ValueError("an array that is not contiguous")
            if not array.dtype.isnative:
                raise TypeError("an array of the other byte order: "
                                "array.astype(array.dtype.newbyteorder(\"=\")) converts it")
            if writes and not array.flags.writeable:
                raise ValueError("an array that may not be written")
            name = array.dtype.name
            self.address, self.count = interface["data"][0], array.size
        if type_name is not None:
            if type_name not in TYPES:
                raise ValueError(f"type {type_name}: it must be one of {', '.join(TYPES)}")
            if name not in (type_name, {"float16": "uint16", "bfloat16": "uint16", "float32": "uint32"}[type_name]):
                raise TypeError(f"an array of {name}, not of {type_name}")
            name = type_name
        if name not in TYPES:
            raise TypeError(f"an array of {name}: it must be of {', '.join(TYPES)} (uint16 with type=\"bfloat16\")")
        self.type: str = name


def empty_like(array: Array, count: int) -> Array:
    """Return an array of the same kind and type with `count` values."""
    if is_tensor(array):
        import torch
        return torch.empty(count, dtype=array.dtype)
    import numpy
    return numpy.empty(count, dtype=array.dtype)
