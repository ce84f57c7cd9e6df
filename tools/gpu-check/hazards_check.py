#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a job does beside a collective that waits: first launches of kernels (lazily loaded), an allocator that frees,
another thread that does both all the time, compute that should overlap, an abort while a peer is late. Two processes on one
GPU, each a node; for plain NCCL, for codecs on the CPU and for codecs on the GPU, launched with NCCL's kernels and behind
them (NIBBLE_GPU_LAUNCH), with one hardware queue and by default. What would change the design most comes first.

    hazards_check.py --plugin FILE --out DIR [--limit SECONDS] [--only TEXT]
"""
import argparse
import ctypes
import json
import os
import sys
import threading
import time

try:
    import torch
except ImportError as problem:
    print(f"skipped: no PyTorch ({problem})")
    sys.exit(77)

import ranks
from nccl_check import NCCL_SUM, TYPES, Nccl

COUNT = 8 << 20   # BF16 values of an all-reduce
PACE = 0.01 if os.environ.get("NB_DRY") else 1.0  # of all waits: a dry run has nothing to wait for
LATE = 1.5 * PACE  # seconds by which the other rank comes later
STUCK = 12.0      # a step that takes longer hangs


def first_ops(m):
    """Operations whose kernels nothing else has launched."""
    return [torch.erfinv, torch.lgamma, torch.digamma, lambda v: torch.cumsum(v, 0), torch.special.i0, torch.sinc,
            lambda v: torch.cumprod(v, 0), lambda v: torch.logcumsumexp(v, 0), lambda v: torch.polygamma(2, v),
            lambda v: torch.histc(v, 7), torch.nan_to_num, lambda v: torch.cdist(m, m), lambda v: torch.topk(v, 9),
            lambda v: torch.sort(v), lambda v: torch.median(v), lambda v: torch.renorm(m, 2, 0, 1.0),
            lambda v: torch.special.bessel_j0(v), lambda v: torch.special.ndtri(v), torch.atanh, torch.frac]


class Rank:
    def __init__(self, rank, folder):
        self.rank, self.folder = rank, folder
        self.said, self.at, self.since = {}, "init", time.monotonic()
        threading.Thread(target=self.watch, daemon=True).start()
        torch.cuda.set_device(0)
        torch.zeros(1, device="cuda")
        self.nccl = Nccl()
        self.stream, self.compute = torch.cuda.Stream(), torch.cuda.Stream()
        self.comm = ctypes.c_void_p()
        self.nccl.CommInitRank(ctypes.byref(self.comm), 2, self.nccl.shared_id(rank, folder), rank)
        self.step("first all-reduce")
        self.a = torch.randn(COUNT, device="cuda").bfloat16()
        self.b = torch.empty_like(self.a)
        torch.cuda.synchronize()
        for _ in range(3):
            self.all_reduce()
            self.wait(self.stream)

    def step(self, what):
        self.at, self.since = what, time.monotonic()
        print(f"{time.monotonic():.3f} {what}", flush=True)

    def watch(self):
        while True:
            time.sleep(0.1)
            if time.monotonic() - self.since > STUCK:
                self.said["hangs"] = f"{self.at}"
                print(f"hangs: {self.at}", flush=True)
                self.write()
                os._exit(3)

    def write(self):
        with open(os.path.join(self.folder, f"rank{self.rank}.json"), "w") as f:
            json.dump(self.said, f)

    def all_reduce(self):
        self.nccl.AllReduce(ctypes.c_void_p(self.a.data_ptr()), ctypes.c_void_p(self.b.data_ptr()), COUNT,
                            TYPES["bfloat16"][0], NCCL_SUM, self.comm, ctypes.c_void_p(self.stream.cuda_stream))

    def reduce_scatter(self):
        self.nccl.ReduceScatter(ctypes.c_void_p(self.a.data_ptr()), ctypes.c_void_p(self.b.data_ptr()), COUNT // 2,
                                TYPES["bfloat16"][0], NCCL_SUM, self.comm, ctypes.c_void_p(self.stream.cuda_stream))

    def wait(self, stream):
        done = torch.cuda.Event()
        done.record(stream)
        while not done.query():
            error = ctypes.c_int()
            self.nccl.CommGetAsyncError(self.comm, ctypes.byref(error))
            if error.value not in (0, 7):
                raise RuntimeError(f"NCCL reports error {error.value}")
            time.sleep(0.0005)

    # ---- the hazards

    def threads(self):
        """Another thread launches kernels for the first time and frees memory all the time, beside all-reduces."""
        x = torch.rand(1 << 12, device="cuda")
        m = torch.rand(64, 64, device="cuda")
        ops = first_ops(m)
        torch.cuda.synchronize()
        done, loads, frees, worst = threading.Event(), [0], [0], [0.0]

        def other():
            torch.cuda.set_device(0)
            stream = torch.cuda.Stream()
            while not done.is_set():
                begun = time.monotonic()
                with torch.cuda.stream(stream):
                    if ops and frees[0] % 3 == 2:
                        ops.pop()(x)
                        loads[0] += 1
                    y = torch.empty((16 + frees[0] % 7) << 20, dtype=torch.uint8, device="cuda")
                    del y
                torch.cuda.empty_cache()
                frees[0] += 1
                worst[0] = max(worst[0], time.monotonic() - begun)

        loader = threading.Thread(target=other, daemon=True)
        loader.start()
        for i in range(60):
            self.step(f"all-reduce {i} beside a thread: {loads[0]} loads, {frees[0]} frees")
            self.all_reduce()
            if i % 4 == 3:
                self.wait(self.stream)
        self.wait(self.stream)
        done.set()
        self.step("the thread's end")
        loader.join()
        self.said.update({"loads": loads[0], "frees": frees[0], "ms": round(worst[0] * 1000, 1)})

    def speed(self):
        """Milliseconds of an all-reduce, for orientation: two processes take turns."""
        begun = time.monotonic()
        for i in range(10):
            self.step(f"all-reduce {i}")
            self.all_reduce()
        self.wait(self.stream)
        self.said["ms"] = round((time.monotonic() - begun) * 100, 1)

    def first_launches(self):
        """Kernels that were never launched before, while an all-reduce is under way."""
        x = torch.rand(1 << 16, device="cuda")
        m = torch.rand(64, 64, device="cuda")
        torch.cuda.synchronize()
        times = []
        for i, op in enumerate(first_ops(m)):
            self.step(f"first launch {i}")
            self.all_reduce()
            begun = time.monotonic()
            with torch.cuda.stream(self.compute):
                op(x)
            times.append(time.monotonic() - begun)
            self.step(f"wait {i}")
            self.wait(self.stream)
            self.wait(self.compute)
        self.said["ms"] = round(max(times) * 1000, 1)

    def first_launch_late(self):
        """The same with a peer that comes late: does the launch wait for it?"""
        x = torch.rand(1 << 16, device="cuda")
        torch.cuda.synchronize()
        self.step("late first launch")
        begun = time.monotonic()
        if self.rank == 1:
            time.sleep(LATE)
        self.all_reduce()
        launched = time.monotonic()
        with torch.cuda.stream(self.compute):
            torch.special.bessel_y1(x)
        self.said["ms"] = round((time.monotonic() - launched) * 1000, 1)
        self.wait(self.compute)
        self.said["until done"] = round((time.monotonic() - launched) * 1000, 1)
        self.wait(self.stream)
        self.said["whole"] = round((time.monotonic() - begun) * 1000, 1)

    def frees(self):
        """An allocator that takes and frees memory while an all-reduce is under way."""
        times = []
        for i in range(10):
            self.step(f"free {i}")
            self.all_reduce()
            begun = time.monotonic()
            with torch.cuda.stream(self.compute):
                x = torch.empty((64 + i) << 20, dtype=torch.uint8, device="cuda")
                x.zero_()
            del x
            torch.cuda.empty_cache()
            times.append(time.monotonic() - begun)
            self.wait(self.stream)
        self.said["ms"] = round(max(times) * 1000, 1)

    def overlap(self):
        """How long matrix products take that were launched behind an all-reduce whose peer comes late."""
        self.overlaps(self.all_reduce)

    def overlap_scatter(self):
        """The same behind a reduce-scatter, whose end the engine can count."""
        self.overlaps(self.reduce_scatter)

    def overlaps(self, collective):
        m = torch.randn(4096, 4096, device="cuda").bfloat16()
        n = torch.empty_like(m)

        def products():
            with torch.cuda.stream(self.compute):
                for _ in range(40):
                    torch.mm(m, m, out=n)
            self.wait(self.compute)

        products()
        torch.cuda.synchronize()
        begun = time.monotonic()
        products()
        self.said["alone"] = round((time.monotonic() - begun) * 1000, 1)
        rounds = []
        for i in range(2):
            self.step(f"overlap {i}")
            torch.cuda.synchronize()
            if self.rank == 1:
                time.sleep(LATE)
            collective()
            begun = time.monotonic()
            if self.rank == 0:
                products()
            rounds.append(time.monotonic() - begun)
            self.wait(self.stream)
        self.said["ms"] = round(min(rounds) * 1000, 1)

    def abort(self):
        """ncclCommAbort while the peer has not come."""
        self.step("abort")
        if self.rank == 1:
            time.sleep(6 * PACE)
            return
        self.all_reduce()
        time.sleep(PACE)
        begun = time.monotonic()
        self.nccl.lib.ncclCommAbort.argtypes = [ctypes.c_void_p]
        self.nccl.lib.ncclCommAbort(self.comm)
        self.said["ms"] = round((time.monotonic() - begun) * 1000, 1)


HAZARDS = ["threads", "first_launches", "abort", "frees", "overlap", "overlap_scatter", "first_launch_late", "speed"]
MODES = {
    "plain NCCL": None,
    "codecs on the CPU": {"NIBBLE_GPU_POINTERS": "0", "NIBBLE_DEVICE": "host"},
    "codecs on the GPU, pinned buffers": {"NIBBLE_GPU_POINTERS": "0", "NIBBLE_DEVICE": "cuda"},
    "codecs on the GPU, device pointers": {"NIBBLE_GPU_POINTERS": "1", "NIBBLE_DEVICE": "cuda", "NCCL_NET_GDR_LEVEL": "SYS"},
}
# The way of launching (NIBBLE_GPU_LAUNCH) that has no name in its row is the default, both kernels by one call.
for name in [m for m in MODES if "on the GPU" in m]:
    MODES[name + ", behind"] = dict(MODES[name], NIBBLE_GPU_LAUNCH="behind")


def plan(hazards):
    """(hazard, mode, connections), first what would change the design most: does either way hold, with real NCCL? Then what
    plain NCCL does, without which the rest means little; then the other memory, one hardware queue, codecs on the CPU."""
    device, pinned = "codecs on the GPU, device pointers", "codecs on the GPU, pinned buffers"
    rounds = [[device, device + ", behind"], ["plain NCCL"], [pinned, pinned + ", behind"]]
    for modes in rounds:
        for hazard in hazards:
            for mode in modes:
                yield hazard, mode, None
    for hazard in hazards:
        if hazard in ("overlap", "overlap_scatter", "first_launches"):
            for mode in MODES:
                yield hazard, mode, "1"
    for hazard in hazards:
        yield hazard, "codecs on the CPU", None


def worker(rank, folder, hazards):
    r = None
    try:
        r = Rank(rank, folder)
        for h in hazards:
            r.said["hazard"] = h
            getattr(r, h)()
    except Exception as problem:
        if r:
            r.said["failed"] = f"{type(problem).__name__}: {problem}"[:200]
        raise
    finally:
        if r:
            r.write()
    sys.stdout.flush()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plugin", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--limit", type=float, default=150)
    parser.add_argument("--only", default="")
    parser.add_argument("--hazards", default=",".join(HAZARDS))
    parser.add_argument("--modes", default="")
    arguments = parser.parse_args()
    why = ranks.no_gpu()
    if why:
        print(f"skipped: {why}")
        return 77
    end = time.monotonic() + arguments.limit - 3
    report, results = ranks.Report(), []
    for hazard, mode, connections in plan(arguments.hazards.split(",")):
        settings = MODES[mode]
        if arguments.modes and not any(m in mode for m in arguments.modes.split(";")):
            continue
        name = f"{hazard}, {mode}, {'one connection' if connections else 'default connections'}"
        if arguments.only not in name:
            continue
        left = end - time.monotonic()
        if left < 8:
            report.row("skipped", name, "no time left")
            continue
        folder = os.path.join(arguments.out, "logs", "hazards-" + name.replace(",", "").replace(" ", "-"))
        os.makedirs(folder, exist_ok=True)
        plugin = arguments.plugin if settings is not None else None

        def environment(rank):
            env = ranks.node_environment(rank, plugin, os.path.join(folder, f"nccl.{rank}"))
            env.update({"CUDA_DEVICE_MAX_CONNECTIONS": connections, "NIBBLE_MIN_BYTES": "16384",
                        "NIBBLE_GRAD": "all", "NIBBLE_WARMUP_STEPS": "0", "NIBBLE_RS": "int4", "NIBBLE_AR": "int4"})
            env.update(settings or {})
            return env

        group = ranks.Group(2, lambda r: worker(r, folder, [hazard]), environment,
                            lambda r: os.path.join(folder, f"rank{r}.log"), min(35, left - 2))
        group.wait()
        said = []
        for r in range(2):
            try:
                with open(os.path.join(folder, f"rank{r}.json")) as f:
                    said.append(json.load(f))
            except (OSError, ValueError):
                said.append({"failed": ranks.last_line(os.path.join(folder, f"rank{r}.log"))})
        results.append({"name": name, "said": said, "status": group.status, "seconds": round(group.took, 1)})
        bad = [f"rank {i} {k} {s[k]}" for i, s in enumerate(said) for k in ("hangs", "failed") if k in s]
        words = "; ".join(", ".join(f"{k} {v}" for k, v in s.items() if k != "hazard") for s in said[:1])
        report.row("failed" if bad or not group.passed() else "measured", name,
                   "; ".join(bad) or (group.why() if not group.passed() else words))
        with open(os.path.join(arguments.out, "hazards.json"), "w") as f:
            json.dump(results, f, indent=1)
    if not results:
        report.row("failed", "hazards", "nothing was measured: no row has these modes, hazards and time")
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
