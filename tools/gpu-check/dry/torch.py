# SPDX-License-Identifier: Apache-2.0
"""A PyTorch and an NCCL in which everything succeeds at once and nothing is computed, for gpu-check's --dry: what asks for
times alone (hazards_check.py) runs through all of its own code with it, and what needs results (nccl_check.py,
training_check.py) with ranks that are stand-ins (standin.py).
"""
import ctypes
import sys

__version__ = "none, a dry run"


class Anything(int):
    """A number that has every attribute, takes every argument and gives itself."""

    def __new__(cls):
        return super().__new__(cls, 1)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments, **named):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        return False

    def __iter__(self):  # as the version of NCCL
        return iter((2, 28, 9))


ANYTHING = Anything()
sys.modules[__name__ + ".distributed"] = ANYTHING


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return ANYTHING


class Function:
    argtypes = restype = None

    def __call__(self, *arguments):
        return 0


class Library:
    def __getattr__(self, name):
        function = Function()
        setattr(self, name, function)
        return function


_load = ctypes.CDLL


def _load_but_nccl(name, *arguments, **named):
    return Library() if name and "libnccl" in str(name) else _load(name, *arguments, **named)


ctypes.CDLL = _load_but_nccl
