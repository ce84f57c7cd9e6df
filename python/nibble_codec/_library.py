# SPDX-License-Identifier: Apache-2.0
"""libnibble-codec.so: its place, and its functions as include/nibble/codec.h and emulate.h declare them."""
from __future__ import annotations

import ctypes
import errno
import os
from typing import Any, Iterator, Tuple

SONAME = "libnibble-codec.so.0"


class Error(OSError):
    """A function of the library failed. The library wrote the reason to stderr."""


class EncodeStats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in
                ("values", "nonfinite", "escapes", "fallback", "flushed", "bounded")] + \
               [(name, ctypes.c_double) for name in ("signal2", "noise2", "carried2")] + \
               [("every", ctypes.c_uint32)]


class Config(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("nodes", ctypes.c_int), ("channels", ctypes.c_int),
                ("buffer_bytes", ctypes.c_size_t), ("chunk_bytes", ctypes.c_size_t),
                ("settings", ctypes.POINTER(ctypes.c_char_p))]


COUNTS = ("operations", "coded", "two_hop", "two_level", "windows", "messages", "bytes", "wire_bytes", "with_feedback",
          "feedback_resets", "feedback_bytes", "reference_bytes")


class FiguresStruct(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in COUNTS] + [("encode", EncodeStats)]


def _candidates() -> Iterator[str]:
    if os.environ.get("NB_CODEC"):
        yield os.environ["NB_CODEC"]
        return
    here = os.path.dirname(os.path.abspath(__file__))
    yield os.path.join(here, SONAME)  # in a wheel
    if os.path.exists(os.path.join(here, "../pyproject.toml")):  # in the sources
        for build in ("build/release", "build"):
            yield os.path.normpath(os.path.join(here, "../..", build, ".libs", SONAME))
    yield SONAME                      # where the loader looks
    for up in ("../../../../lib", "../../lib", "../../../lib"):  # PREFIX/share/nibble/python, beside a PREFIX/lib
        yield os.path.normpath(os.path.join(here, up, SONAME))


def _load() -> Tuple[ctypes.CDLL, str]:
    tried = []
    for path in _candidates():
        try:
            return ctypes.CDLL(path), path
        except OSError as err:
            tried.append(f"  {err}")
    raise ImportError(f"{SONAME} cannot be loaded; NB_CODEC=PATH says where it is:\n" + "\n".join(tried))


_lib, _path = _load()
_p, _int, _size, _ssize = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_ssize_t
_arrays = ctypes.POINTER(ctypes.c_void_p)
for _name, _result, _arguments in (
        ("nb_encode_bound", _size, (_int, _int, _size)),
        ("nb_encode", _ssize, (_int, _int, _p, _size, ctypes.c_uint64, _p, _p, _size, ctypes.POINTER(EncodeStats))),
        ("nb_decode", _int, (_int, _int, _p, _size, _size, ctypes.c_uint64, _p)),
        ("nb_emulate_open", _int, (ctypes.POINTER(Config), ctypes.POINTER(_p))),
        ("nb_emulate_close", None, (_p,)),
        ("nb_emulate_all_reduce", _int, (_p, _int, _size, _arrays, _arrays, ctypes.c_int64)),
        ("nb_emulate_reduce_scatter", _int, (_p, _int, _size, _arrays, _arrays, ctypes.c_int64)),
        ("nb_emulate_all_gather", _int, (_p, _int, _size, _arrays, _arrays)),
        ("nb_emulate_figures", _int, (_p, _int, _int, ctypes.POINTER(FiguresStruct))),
        ("nb_emulate_residual", _int, (_p, _int, _int, ctypes.c_int64, ctypes.c_uint, _size, _p, _p, _p)),
        ("nb_emulate_reason", ctypes.c_char_p, ()),
        ("nb_emulate_version", ctypes.c_char_p, ())):
    _function = getattr(_lib, _name)
    _function.restype = _result
    _function.argtypes = _arguments


def call(name: str, *arguments: Any) -> int:
    """Call a function that returns 0 or more, or a negative errno."""
    result = int(getattr(_lib, name)(*arguments))
    if result < 0:
        code = -result
        if code == errno.EINVAL:
            raise ValueError(f"{name}: an argument is out of its range")
        raise Error(code, f"{name}: {os.strerror(code)}")
    return result


def open_emulation(config: Config) -> ctypes.c_void_p:
    """Return the handle of a new emulation. An exception has the lines that say why there is none."""
    handle = ctypes.c_void_p()
    result = _lib.nb_emulate_open(ctypes.byref(config), ctypes.byref(handle))
    if result < 0:
        why = _lib.nb_emulate_reason().decode(errors="replace") or os.strerror(-result)
        raise ValueError(why) if result == -errno.EINVAL else Error(-result, why)
    return handle


def get(name: str) -> Any:
    return getattr(_lib, name)


def library_path() -> str:
    """Return the path of the loaded file."""
    return _path


def version() -> str:
    """Return version and commit of the library."""
    return str(_lib.nb_emulate_version().decode())
