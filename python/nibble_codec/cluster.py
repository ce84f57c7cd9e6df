# SPDX-License-Identifier: Apache-2.0
"""N nodes of the plugin in this process; see include/nibble/emulate.h."""
import ctypes
import errno

from . import _library
from ._arrays import TYPES, View, empty_like

FUNCTIONS = {"reduce_scatter": 0, "all_gather": 1, "all_reduce": 2}
NOBODY = -1  # as a buffer: the plugin finds out which it is


class Figures:
    """Counters of nodes: the fields of struct nb_emulate_figures, and ratios derived from them."""

    def __init__(self, struct):
        for name in _library.COUNTS:
            setattr(self, name, getattr(struct, name))
        self.signal2, self.noise2 = struct.encode.signal2, struct.encode.noise2
        self.bounded, self.escapes, self.nonfinite = (struct.encode.bounded, struct.encode.escapes,
                                                      struct.encode.nonfinite)

    @property
    def ratio(self):
        """Bytes on the wire over bytes of values; nan before the first message."""
        return self.wire_bytes / self.bytes if self.bytes else float("nan")

    @property
    def nmse(self):
        """Error of the quantized contributions over their energy, as the plugin measures it."""
        return self.noise2 / self.signal2 if self.signal2 else 0.0

    def __repr__(self):
        return "Figures(" + ", ".join(f"{name}={getattr(self, name)}" for name in _library.COUNTS) + ")"


def _settings(settings):
    if hasattr(settings, "items"):
        settings = [f"{name}={value}" for name, value in settings.items()]
    return [(text if text.startswith("NIBBLE_") else "NIBBLE_" + text).encode() for text in settings]


class Cluster:
    """N connected nodes. An operation takes a list with an array of each node, and returns such a list: NumPy arrays or CPU tensors.

    settings: as in the environment of a job, {"NIBBLE_RS": "int8"} or ["NIBBLE_RS=int8"]; the prefix may be left out. An unknown
    name, or a bad value, is a ValueError that names it and what is allowed.
    channels, buffer_bytes, chunk_bytes: how NCCL cuts operations; see docs/own-model.md.
    Use it from one thread at a time. close(), or a with statement, frees it.
    """

    def __init__(self, nodes, settings=(), channels=0, buffer_bytes=0, chunk_bytes=0):
        texts = _settings(settings)
        array = (ctypes.c_char_p * (len(texts) + 1))(*texts, None)
        config = _library.Config(ctypes.sizeof(_library.Config), nodes, channels, buffer_bytes, chunk_bytes, array)
        self._handle = None
        self._handle, self.nodes = _library.open_emulation(config), nodes

    def close(self):
        if self._handle:
            _library.get("nb_emulate_close")(self._handle)
            self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None) and _library is not None:
            self.close()

    def _views(self, arrays, count, type_name, writes):
        if len(arrays) != self.nodes:
            raise ValueError(f"{len(arrays)} arrays for {self.nodes} nodes")
        views = [View(array, type_name, writes) for array in arrays]
        if count is None:
            count = views[0].count
        for view in views:
            if view.count != count or view.type != views[0].type:
                raise ValueError(f"an array of {view.count} values of {view.type}, not of {count} of {views[0].type}")
        return views, (ctypes.c_void_p * self.nodes)(*(view.address for view in views))

    def _operate(self, name, send, recv, send_factor, recv_factor, type_name, *buffer):
        if not self._handle:
            raise ValueError("the cluster is closed")
        views, send_array = self._views(send, None, type_name, False)
        if views[0].count % send_factor:
            raise ValueError(f"{views[0].count} values cannot be divided among {self.nodes} nodes")
        count = views[0].count // send_factor
        if recv is None:
            recv = [empty_like(array, count * recv_factor) for array in send]
        results, recv_array = self._views(recv, count * recv_factor, type_name, True)
        if results[0].type != views[0].type:
            raise ValueError(f"results of {results[0].type} for values of {views[0].type}")
        _library.call(name, self._handle, TYPES[views[0].type], count, send_array, recv_array, *buffer)
        return recv

    def all_reduce(self, send, recv=None, buffer=0, type=None):
        """Return the sum of all nodes' arrays, on every node. buffer: number of the buffer whose residual it uses."""
        return self._operate("nb_emulate_all_reduce", send, recv, 1, 1, type, buffer)

    def reduce_scatter(self, send, recv=None, buffer=0, type=None):
        """Return block n of the sum on node n. Arrays have nodes x count values."""
        return self._operate("nb_emulate_reduce_scatter", send, recv, self.nodes, 1, type, buffer)

    def all_gather(self, send, recv=None, type=None):
        """Return the blocks of all nodes, on every node."""
        return self._operate("nb_emulate_all_gather", send, recv, 1, self.nodes, type)

    def figures(self, function="all_reduce", node=None):
        """Return the counters of node `node`, or of all nodes, for one function."""
        struct = _library.FiguresStruct(ctypes.sizeof(_library.FiguresStruct))
        _library.call("nb_emulate_figures", self._handle, -1 if node is None else node, FUNCTIONS[function],
                      ctypes.byref(struct))
        return Figures(struct)

    def residual(self, node, count, buffer=0, function="all_reduce", block=0):
        """Return a node's residual of a buffer as a NumPy array of float32, or None."""
        import numpy
        values = numpy.zeros(count, dtype=numpy.float32)
        try:
            _library.call("nb_emulate_residual", self._handle, node, FUNCTIONS[function], buffer, block, count, None, None,
                          values.ctypes.data)
        except _library.Error as err:
            if err.errno == errno.ENOENT:
                return None
            raise
        return values
