# SPDX-License-Identifier: Apache-2.0
"""N nodes of the plugin in this process; see include/nibble/emulate.h."""
from __future__ import annotations

import ctypes
import errno
from typing import Any, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from . import _library
from ._arrays import TYPES, Array, View, empty_like

Settings = Union[Mapping[str, Any], Iterable[str]]

FUNCTIONS = {"reduce_scatter": 0, "all_gather": 1, "all_reduce": 2}
NOBODY = -1  # as a buffer: the plugin finds out which it is


class Figures:
    """Counters of nodes: the fields of struct nb_emulate_figures, and ratios derived from them."""

    operations: int
    coded: int
    two_hop: int
    two_level: int
    windows: int
    messages: int
    bytes: int
    wire_bytes: int
    with_feedback: int
    feedback_resets: int
    feedback_bytes: int
    reference_bytes: int

    def __init__(self, struct: _library.FiguresStruct) -> None:
        for name in _library.COUNTS:
            setattr(self, name, int(getattr(struct, name)))
        encode = struct.encode
        self.signal2, self.noise2 = float(encode.signal2), float(encode.noise2)
        self.bounded, self.escapes, self.nonfinite = int(encode.bounded), int(encode.escapes), int(encode.nonfinite)

    @property
    def ratio(self) -> float:
        """Bytes on the wire over bytes of values; nan before the first message."""
        return self.wire_bytes / self.bytes if self.bytes else float("nan")

    @property
    def nmse(self) -> float:
        """Error of the quantized contributions over their energy, as the plugin measures it."""
        return self.noise2 / self.signal2 if self.signal2 else 0.0

    def __repr__(self) -> str:
        return "Figures(" + ", ".join(f"{name}={getattr(self, name)}" for name in _library.COUNTS) + ")"


def _settings(settings: Settings) -> List[bytes]:
    if isinstance(settings, Mapping):
        settings = [f"{name}={value}" for name, value in settings.items()]
    return [(text if text.startswith("NIBBLE_") else "NIBBLE_" + text).encode() for text in settings]


def _function(name: str) -> int:
    if name not in FUNCTIONS:
        raise ValueError(f"no function {name!r}: {', '.join(FUNCTIONS)}")
    return FUNCTIONS[name]


class Cluster:
    """N connected nodes. An operation takes a list with an array of each node, and returns such a list: NumPy arrays or CPU tensors.

    settings: as in the environment of a job, {"NIBBLE_RS": "int8"} or ["NIBBLE_RS=int8"]; the prefix may be left out. An unknown
    name, or a bad value, is a ValueError that names it and what is allowed.
    channels, buffer_bytes, chunk_bytes: how NCCL cuts operations; see docs/own-model.md.
    Use it from one thread at a time. close(), or a with statement, frees it.
    """

    def __init__(self, nodes: int, settings: Settings = (), channels: int = 0, buffer_bytes: int = 0,
                 chunk_bytes: int = 0) -> None:
        texts = _settings(settings)
        array = (ctypes.c_char_p * (len(texts) + 1))(*texts, None)
        config = _library.Config(ctypes.sizeof(_library.Config), nodes, channels, buffer_bytes, chunk_bytes, array)
        self._handle: Optional[ctypes.c_void_p] = None
        self._handle, self.nodes = _library.open_emulation(config), nodes

    def close(self) -> None:
        if self._handle:
            _library.get("nb_emulate_close")(self._handle)
            self._handle = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and _library is not None:
            self.close()

    def _views(self, arrays: Sequence[Array], count: Optional[int], type_name: Optional[str],
               writes: bool) -> Tuple[List[View], Any]:
        if len(arrays) != self.nodes:
            raise ValueError(f"{len(arrays)} arrays for {self.nodes} nodes")
        views = [View(array, type_name, writes) for array in arrays]
        if count is None:
            count = views[0].count
        for view in views:
            if view.count != count or view.type != views[0].type:
                raise ValueError(f"an array of {view.count} values of {view.type}, not of {count} of {views[0].type}")
        return views, (ctypes.c_void_p * self.nodes)(*(view.address for view in views))

    def _open(self) -> ctypes.c_void_p:
        if not self._handle:
            raise ValueError("the cluster is closed")
        return self._handle

    def _operate(self, name: str, send: Sequence[Array], recv: Optional[List[Array]], send_factor: int,
                 recv_factor: int, type_name: Optional[str], *buffer: int) -> List[Array]:
        handle = self._open()
        views, send_array = self._views(send, None, type_name, False)
        if views[0].count % send_factor:
            raise ValueError(f"{views[0].count} values cannot be divided among {self.nodes} nodes")
        count = views[0].count // send_factor
        if recv is None:
            recv = [empty_like(array, count * recv_factor) for array in send]
        results, recv_array = self._views(recv, count * recv_factor, type_name, True)
        if results[0].type != views[0].type:
            raise ValueError(f"results of {results[0].type} for values of {views[0].type}")
        _library.call(name, handle, TYPES[views[0].type], count, send_array, recv_array, *buffer)
        return recv

    def all_reduce(self, send: Sequence[Array], recv: Optional[List[Array]] = None, buffer: int = 0,
                   type: Optional[str] = None) -> List[Array]:
        """Return the sum of all nodes' arrays, on every node. buffer: number of the buffer whose residual it uses."""
        return self._operate("nb_emulate_all_reduce", send, recv, 1, 1, type, buffer)

    def reduce_scatter(self, send: Sequence[Array], recv: Optional[List[Array]] = None, buffer: int = 0,
                       type: Optional[str] = None) -> List[Array]:
        """Return block n of the sum on node n. Arrays have nodes x count values."""
        return self._operate("nb_emulate_reduce_scatter", send, recv, self.nodes, 1, type, buffer)

    def all_gather(self, send: Sequence[Array], recv: Optional[List[Array]] = None,
                   type: Optional[str] = None) -> List[Array]:
        """Return the blocks of all nodes, on every node."""
        return self._operate("nb_emulate_all_gather", send, recv, 1, self.nodes, type)

    def figures(self, function: str = "all_reduce", node: Optional[int] = None) -> Figures:
        """Return the counters of node `node`, or of all nodes, for one function."""
        struct = _library.FiguresStruct(ctypes.sizeof(_library.FiguresStruct))
        _library.call("nb_emulate_figures", self._open(), -1 if node is None else node, _function(function),
                      ctypes.byref(struct))
        return Figures(struct)

    def residual(self, node: int, count: int, buffer: int = 0, function: str = "all_reduce", block: int = 0) -> Optional[Array]:
        """Return a node's residual of a buffer as a NumPy array of float32, or None."""
        import numpy
        values = numpy.zeros(count, dtype=numpy.float32)
        try:
            _library.call("nb_emulate_residual", self._open(), node, _function(function), buffer, block, count,
                          None, None, values.ctypes.data)
        except _library.Error as err:
            if err.errno == errno.ENOENT:
                return None
            raise
        return values
