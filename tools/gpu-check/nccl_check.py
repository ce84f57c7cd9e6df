#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The plugin under the NCCL that PyTorch brings, with 2 and 4 processes on one GPU, each a node of its own.

NCCL is called directly (ctypes), PyTorch only holds memory and computes what must come out. Every configuration is a
group of processes with a time limit of its own: number of hardware queues, host buffers or device pointers handed to the
plugin, everything coded or everything raw; in each: all collectives and types, in place and not, registered user
buffers and not, eagerly and as a CUDA graph, send and receive. What must be exact is compared bit by bit, coded sums by
their error's energy, and the plugin's own summary must say that it carried them coded. Two configurations train instead,
without NIBBLE_GRAD: they have to recognise the gradients by what their sums do to the weights, and nothing else.

    nccl_check.py --plugin FILE --out DIR [--limit SECONDS]
"""
import argparse
import ctypes
import glob
import json
import os
import sys
import time

try:
    import torch
except ImportError as problem:
    print(f"skipped: no PyTorch ({problem})")
    sys.exit(77)

import ranks

NCCL_SUM = 0
# name: NCCL's number, PyTorch's type that holds it, whether sums of it are coded, bound of exact test values
TYPES = {
    "int8": (0, torch.int8, False, 8),
    "uint8": (1, torch.uint8, False, 8),
    "int32": (2, torch.int32, False, 1 << 20),
    "uint32": (3, torch.int32, False, 1 << 20),
    "int64": (4, torch.int64, False, 1 << 40),
    "uint64": (5, torch.int64, False, 1 << 40),
    "float16": (6, torch.float16, True, 8),
    "float32": (7, torch.float32, True, 1 << 16),
    "float64": (8, torch.float64, False, 1 << 30),
    "bfloat16": (9, torch.bfloat16, True, 8),
    "float8e4m3": (10, getattr(torch, "float8_e4m3fn", None), False, 2),
    "float8e5m2": (11, getattr(torch, "float8_e5m2", None), False, 2),
}
SMALL, LARGE = 1003, 300007
CODED_NMSE = 0.03  # of a sum of independent gradients; 4 bits twice leave 0.011
STEP_SECONDS = 20.0
TRAINED_STEPS = 72  # nothing is coded before 50


class Nccl:
    """The functions of NCCL that are needed, from the library that PyTorch has loaded."""

    class UniqueId(ctypes.Structure):
        _fields_ = [("data", ctypes.c_char * 128)]

    def __init__(self):
        path = "libnccl.so.2"
        with open("/proc/self/maps") as maps:
            for line in maps:
                if "libnccl.so" in line:
                    path = line.split(None, 5)[5].strip()
                    break
        self.lib = ctypes.CDLL(path)
        p, z, i = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self.types = {
            "ncclGetUniqueId": [ctypes.POINTER(self.UniqueId)],
            "ncclCommInitRank": [ctypes.POINTER(p), i, self.UniqueId, i],
            "ncclCommDestroy": [p],
            "ncclCommGetAsyncError": [p, ctypes.POINTER(i)],
            "ncclAllReduce": [p, p, z, i, i, p, p],
            "ncclReduceScatter": [p, p, z, i, i, p, p],
            "ncclAllGather": [p, p, z, i, p, p],
            "ncclSend": [p, z, i, i, p, p],
            "ncclRecv": [p, z, i, i, p, p],
            "ncclGroupStart": [],
            "ncclGroupEnd": [],
            "ncclMemAlloc": [ctypes.POINTER(p), z],
            "ncclCommRegister": [p, p, z, ctypes.POINTER(p)],
            "ncclCommDeregister": [p, p],
        }
        self.lib.ncclGetErrorString.restype = ctypes.c_char_p
        for name, types in self.types.items():
            getattr(self.lib, name).argtypes = types

    def __getattr__(self, name):
        function = getattr(self.lib, "nccl" + name)

        def call(*arguments):
            result = function(*arguments)
            if result not in (0, 7):  # 7: in progress
                raise RuntimeError(f"nccl{name}: {self.lib.ncclGetErrorString(result).decode()} ({result})")
        return call

    def shared_id(self, rank, folder):
        """Return the communicator's identity, which rank 0 makes and passes to the others by a file of the folder."""
        identity = self.UniqueId()
        name = os.path.join(folder, "id")
        if rank == 0:
            self.GetUniqueId(ctypes.byref(identity))
            with open(name + ".new", "wb") as f:
                f.write(bytes(identity))
            os.rename(name + ".new", name)
        while not os.path.exists(name):
            time.sleep(0.01)
        with open(name, "rb") as f:
            ctypes.memmove(ctypes.byref(identity), f.read(128), 128)
        return identity


class Foreign:
    """Memory that is not PyTorch's, for torch.as_tensor."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 2}


class Worker:
    def __init__(self, rank, count, configuration, folder):
        self.rank, self.count, self.configuration = rank, count, configuration
        self.failures, self.cases, self.coded_cases, self.worst = [], 0, 0, 0.0
        torch.cuda.set_device(0)
        torch.zeros(1, device="cuda")
        self.nccl = Nccl()
        self.stream = torch.cuda.Stream()
        self.comm = ctypes.c_void_p()
        identity = self.nccl.shared_id(rank, folder)
        print("init", flush=True)
        self.nccl.CommInitRank(ctypes.byref(self.comm), count, identity, rank)
        # One block of memory NCCL can register, cut up for every case.
        self.size = 24 << 20
        address = ctypes.c_void_p()
        self.nccl.MemAlloc(ctypes.byref(address), 2 * self.size)
        block = torch.as_tensor(Foreign(address.value, 2 * self.size), device="cuda")
        self.send, self.recv = block[:self.size], block[self.size:]
        self.address = address
        self.registration = None

    def register(self, on):
        if on and self.registration is None:
            self.registration = ctypes.c_void_p()
            self.nccl.CommRegister(self.comm, self.address, 2 * self.size, ctypes.byref(self.registration))
        elif not on and self.registration is not None:
            self.nccl.CommDeregister(self.comm, self.registration)
            self.registration = None

    def wait(self):
        """Until the stream is empty; an error of NCCL's threads or too long a time is an exception."""
        done = torch.cuda.Event()
        done.record(self.stream)
        end = time.monotonic() + STEP_SECONDS
        error = ctypes.c_int()
        while not done.query():
            self.nccl.CommGetAsyncError(self.comm, ctypes.byref(error))
            if error.value not in (0, 7):
                raise RuntimeError(f"NCCL reports error {error.value}")
            if time.monotonic() > end:
                raise RuntimeError(f"not done after {STEP_SECONDS:.0f} s")
            time.sleep(0.0002)

    def values(self, kind, count, rank, seed, exact):
        """The contribution of a rank, the same whoever asks."""
        number, dtype, _, bound = TYPES[kind]
        g = torch.Generator(device="cuda").manual_seed(1000003 * seed + 101 * rank + number)
        if not exact:
            scale = torch.exp2(torch.randint(-14, -6, (count // 1024 + 1,), generator=g, device="cuda").float())
            v = torch.randn(count, generator=g, device="cuda") * scale.repeat_interleave(1024)[:count]
            return v.to(dtype)
        low = 0 if kind.startswith("u") else -bound
        return torch.randint(low, bound + 1, (count,), generator=g, device="cuda").to(dtype)

    def total(self, kind, count, seed, exact):
        parts = [self.values(kind, count, r, seed, exact) for r in range(self.count)]
        wide = torch.int64 if not TYPES[kind][1].is_floating_point else torch.float64
        return sum(p.to(wide) for p in parts)

    def judge(self, what, got, wanted, coded):
        self.cases += 1
        if coded:
            self.coded_cases += 1
            exact = wanted.double()
            nmse = float(((got.double() - exact) ** 2).sum() / (exact ** 2).sum())
            self.worst = max(self.worst, nmse)
            if not nmse <= CODED_NMSE:
                self.failures.append(f"{what}: error {nmse:.4f} of the energy")
        else:
            wanted = wanted.to(got.dtype)
            wrong = int((got.view(torch.uint8) != wanted.view(torch.uint8)).sum())
            if wrong:
                self.failures.append(f"{what}: {wrong} of {got.numel() * got.element_size()} bytes wrong")

    def views(self, kind, count_send, count_recv, in_place):
        """Send and receive buffer; in place the smaller one lies in the larger one where NCCL expects it."""
        dtype = TYPES[kind][1]
        width = torch.empty(0, dtype=dtype).element_size()
        if not in_place:
            return (self.send[:count_send * width].view(dtype), self.recv[:count_recv * width].view(dtype))
        if count_send == count_recv:
            both = self.recv[:count_recv * width].view(dtype)
            return both, both
        larger = max(count_send, count_recv)
        small = min(count_send, count_recv)
        whole = self.recv[:larger * width].view(dtype)
        own = whole[self.rank * small:(self.rank + 1) * small]
        return (own, whole) if count_send < count_recv else (whole, own)

    def issue(self, func, kind, count, send, recv):
        number = TYPES[kind][0]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        a, b = ctypes.c_void_p(send.data_ptr()), ctypes.c_void_p(recv.data_ptr())
        if func == "all_reduce":
            self.nccl.AllReduce(a, b, count, number, NCCL_SUM, self.comm, stream)
        elif func == "reduce_scatter":
            self.nccl.ReduceScatter(a, b, count, number, NCCL_SUM, self.comm, stream)
        elif func == "all_gather":
            self.nccl.AllGather(a, b, count, number, self.comm, stream)
        else:
            right, left = (self.rank + 1) % self.count, (self.rank - 1) % self.count
            self.nccl.GroupStart()
            self.nccl.Send(a, count, number, right, self.comm, stream)
            self.nccl.Recv(b, count, number, left, self.comm, stream)
            self.nccl.GroupEnd()

    def prepare(self, func, kind, count, seed, exact, in_place):
        """Buffers with this rank's values in them, and what must be in the second one afterwards."""
        n = self.count
        if func == "all_reduce":
            send, recv = self.views(kind, count, count, in_place)
            values, wanted = self.values(kind, count, self.rank, seed, exact), self.total(kind, count, seed, exact)
        elif func == "reduce_scatter":
            send, recv = self.views(kind, count * n, count, in_place)
            values = self.values(kind, count * n, self.rank, seed, exact)
            wanted = self.total(kind, count * n, seed, exact)[self.rank * count:(self.rank + 1) * count]
        elif func == "all_gather":
            send, recv = self.views(kind, count, count * n, in_place)
            values = self.values(kind, count, self.rank, seed, exact)
            wanted = torch.cat([self.values(kind, count, r, seed, exact) for r in range(n)])
        else:
            send, recv = self.views(kind, count, count, False)
            values = self.values(kind, count, self.rank, seed, exact)
            wanted = self.values(kind, count, (self.rank - 1) % n, seed, exact)
        if not in_place:
            recv.view(torch.uint8).fill_(0xa5)
        send.copy_(values)
        torch.cuda.synchronize()
        return send, recv, wanted

    def is_coded(self, func, kind, count):
        width = torch.empty(0, dtype=TYPES[kind][1]).element_size()
        whole = count * width * (self.count if func == "reduce_scatter" else 1)
        return (self.configuration["coded"] and TYPES[kind][2] and whole >= 65536 and
                (func == "reduce_scatter" or func == "all_reduce" and self.configuration["records"]))

    def eager(self, label, func, kind, count, seed, in_place):
        # All-reduces without records are raw; so may some be whose record is in doubt: both are right, exact or not.
        coded = self.is_coded(func, kind, count)
        what = f"{label} {func} {kind} x {count}{' in place' if in_place else ''}"
        print(what, flush=True)
        send, recv, wanted = self.prepare(func, kind, count, seed, not coded, in_place)
        with torch.cuda.stream(self.stream):
            self.issue(func, kind, count, send, recv)
        self.wait()
        self.judge(what, recv, wanted, coded)

    def graph(self, label):
        """A captured sequence of three collectives, replayed with other values."""
        print(f"{label} graph", flush=True)
        cases = [("all_reduce", "float32", LARGE), ("reduce_scatter", "bfloat16", LARGE), ("all_gather", "bfloat16", LARGE)]
        cases = [c for c in cases if not self.configuration["pointers"] or self.collnet(*c)]
        spans, at = [], 0
        for func, kind, count in cases:
            spans.append(at)
            width = torch.empty(0, dtype=TYPES[kind][1]).element_size()
            at += (count * self.count * width + 4095) // 4096 * 4096
        whole = self.send, self.recv
        if at > self.size:
            raise RuntimeError("the block is too small for the graph's buffers")

        def part(i):
            self.send, self.recv = whole[0][spans[i]:], whole[1][spans[i]:]

        try:
            buffers = []
            for i, (func, kind, count) in enumerate(cases):
                part(i)
                buffers.append(self.prepare(func, kind, count, 900 + i, not self.is_coded(func, kind, count), False)[:2])
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g, stream=self.stream, capture_error_mode="relaxed"):
                for (func, kind, count), (send, recv) in zip(cases, buffers):
                    self.issue(func, kind, count, send, recv)
            for replay in range(4):
                print(f"{label} replay {replay}", flush=True)
                wanted = []
                for i, (func, kind, count) in enumerate(cases):
                    part(i)
                    wanted.append(self.prepare(func, kind, count, 1000 + 10 * replay + i,
                                               not self.is_coded(func, kind, count), False)[2])
                with torch.cuda.stream(self.stream):
                    g.replay()
                self.wait()
                for i, (func, kind, count) in enumerate(cases):
                    self.judge(f"{label} graph, replay {replay}, {func} {kind}", buffers[i][1], wanted[i],
                               self.is_coded(func, kind, count))
            g.reset()
            torch.cuda.synchronize()
        finally:
            self.send, self.recv = whole

    def weights(self, label):
        """Weights that move by little, gathered again and again: what the exact differences are for."""
        n, count, dtype = self.count, LARGE, torch.bfloat16
        print(f"{label} weights", flush=True)
        send, recv = self.views("bfloat16", count, count * n, False)
        g = torch.Generator(device="cuda").manual_seed(77)
        master = torch.randn(n * count, generator=g, device="cuda") * 0.02
        for step in range(6):
            if step != 4:  # once they do not move at all
                master += torch.randn(n * count, generator=g, device="cuda") * 2e-5
            wanted = master.to(dtype)
            send.copy_(wanted[self.rank * count:(self.rank + 1) * count])
            recv.view(torch.uint8).fill_(0x5a)
            torch.cuda.synchronize()
            with torch.cuda.stream(self.stream):
                self.issue("all_gather", "bfloat16", count, send, recv)
            self.wait()
            self.judge(f"{label} weights, step {step}", recv, wanted, False)

    def train(self):
        """A shard as FSDP has it: weights are gathered, a sum comes that changes nothing, then the gradient's, which moves
        them. Whatever is not that gradient has to be right to the bit."""
        n, count = self.count, LARGE
        own = slice(self.rank * count, (self.rank + 1) * count)
        g = torch.Generator(device="cuda").manual_seed(78 + self.rank)
        master = torch.randn(count, generator=g, device="cuda") * 0.02
        for step in range(TRAINED_STEPS):
            print(f"trained step {step}", flush=True)
            send, recv = self.views("bfloat16", count, count * n, False)
            send.copy_(master)
            torch.cuda.synchronize()
            with torch.cuda.stream(self.stream):
                self.issue("all_gather", "bfloat16", count, send, recv)
            self.wait()
            self.judge(f"weights of step {step}", recv[own], master.to(torch.bfloat16), False)
            for moves in (False, True):
                many = count if moves else count - 8
                send, recv, wanted = self.prepare("reduce_scatter", "float32", many, 2 * step + moves, not moves, False)
                with torch.cuda.stream(self.stream):
                    self.issue("reduce_scatter", "float32", many, send, recv)
                self.wait()
                self.judge(f"{'gradient' if moves else 'other sum'} of step {step}", recv, wanted, moves)
            master -= 0.05 * recv

    def collnet(self, func, kind, count):
        """Whether NCCL gives it to CollNet: over TCP nothing else takes device pointers."""
        if func != "all_gather" and kind.startswith("float8"):
            return False
        return count == LARGE and (func != "all_reduce" or self.configuration["records"])

    def run(self):
        if self.configuration["trains"]:
            self.train()
        else:
            self.all_of_it()
        print("destroy", flush=True)
        self.nccl.CommDestroy(self.comm)
        print("done", flush=True)

    def all_of_it(self):
        kinds = [k for k, t in TYPES.items() if t[1] is not None]
        if torch.cuda.get_device_capability()[0] < 9 or (ranks.nccl_version() or (0,)) < (2, 24):
            kinds = [k for k in kinds if not k.startswith("float8")]
        seed = 0
        for registered in (False, True):
            label = "registered" if registered else "not registered"
            self.register(registered)
            for func in ("all_reduce", "reduce_scatter", "all_gather"):
                for kind in kinds:
                    # NIBBLE_FORCE_COLLNET forces types that CollNet does not reduce, too: NCCL's tuner interface
                    # does not tell the type. A float8 sum would end the job.
                    if kind.startswith("float8") and func != "all_gather":
                        continue
                    for count in (SMALL, LARGE):
                        seed += 1
                        if self.configuration["pointers"] and not self.collnet(func, kind, count):
                            continue
                        self.eager(label, func, kind, count, seed, in_place=seed % 3 == 0)
            if not self.configuration["pointers"]:  # over TCP only collectives take device pointers
                self.eager(label, "send and receive", "float32", LARGE, seed, False)
            self.weights(label)
            if self.configuration["graphs"]:
                self.graph(label)
        self.register(False)


def worker(rank, count, configuration, folder):
    w = Worker(rank, count, configuration, folder)
    try:
        w.run()
    finally:
        with open(os.path.join(folder, f"rank{rank}.json"), "w") as f:
            json.dump({"cases": w.cases, "coded": w.coded_cases, "worst": w.worst, "failures": w.failures}, f)
    return 1 if w.failures else 0


# How the plugin gets the data, and where its codecs run.
MODES = {
    "host buffers": {"NIBBLE_GPU_POINTERS": "0", "NIBBLE_DEVICE": "host"},
    "host buffers, codecs on the GPU": {"NIBBLE_GPU_POINTERS": "0", "NIBBLE_DEVICE": "cuda"},
    "device pointers": {"NIBBLE_GPU_POINTERS": "1", "NIBBLE_DEVICE": "cuda", "NCCL_NET_GDR_LEVEL": "SYS"},
}
ON_GPU = "codecs run on it"  # what the log says of a GPU in use
RECOGNISED = "the gathered weights follow its sums"  # and of a gradient


def configurations(plugin):
    """Most telling first: what does not fit in the time is left out and named."""
    able = ranks.knows_gpus(plugin)
    records = (ranks.nccl_version() or (0,)) >= (2, 28)
    host, kernel, device = MODES
    for count, connections, mode, sums in (
            (2, None, host, "coded"), (2, None, device, "coded"), (2, None, device, "recognised"),
            (2, "1", device, "coded"), (2, "1", host, "coded"), (4, None, host, "coded"), (4, None, device, "coded"),
            (2, None, kernel, "coded"), (4, "1", device, "coded"), (4, "1", host, "coded"), (2, "1", kernel, "coded"),
            (2, None, host, "raw"), (2, None, device, "raw"), (2, None, kernel, "recognised"),
            (4, None, kernel, "coded"), (4, None, host, "raw")):
        environment = {"CUDA_DEVICE_MAX_CONNECTIONS": connections, "NIBBLE_MIN_BYTES": "16384"}
        if sums == "coded":
            environment.update({"NIBBLE_GRAD": "all", "NIBBLE_WARMUP_STEPS": "0", "NIBBLE_RS": "int4", "NIBBLE_AR": "int4",
                                "NIBBLE_MIN_BYTES": "65536"})
        elif sums == "recognised":
            environment["NIBBLE_RS"] = "int4"  # whatever is reckoned to pay
        else:
            # Through the engine, but raw: with NIBBLE_RS=raw the tuner would leave sums to NCCL's own algorithms.
            environment["NIBBLE_WARMUP_STEPS"] = "1000000"
        if able:
            environment.update(MODES[mode])
        yield {
            "name": f"{count} processes, {mode}, {'one connection' if connections else 'default connections'}, "
                    f"{sums}",
            "count": count, "environment": environment, "coded": sums == "coded", "graphs": True, "records": records,
            "trains": sums == "recognised",
            "gpu": mode != host, "pointers": mode == device,
            "missing": "this plugin has no NIBBLE_DEVICE" if mode != host and not able else None,
        }


def what_happened(folder, configuration):
    """Totals over the ranks' reports and logs."""
    reports, logs = [], ""
    for r in range(configuration["count"]):
        try:
            with open(os.path.join(folder, f"rank{r}.json")) as f:
                reports.append(json.load(f))
        except (OSError, ValueError):
            pass
    for name in sorted(glob.glob(os.path.join(folder, "nccl.*"))):
        with open(name, errors="replace") as f:
            logs += f.read()
    return reports, logs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plugin", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--limit", type=float, default=150)
    parser.add_argument("--only", default="", help="configurations whose name contains this")
    arguments = parser.parse_args()
    began = time.monotonic()
    if not os.path.exists(arguments.plugin):
        print(f"skipped: {arguments.plugin} is not built")
        return 77
    why = ranks.no_gpu()
    if why:
        print(f"skipped: {why}")
        return 77
    end = began + arguments.limit - 5
    report = ranks.Report()
    results = []
    rank_of = ranks.stand_in("nccl", report) or worker
    for configuration in configurations(arguments.plugin):
        name = configuration["name"]
        if arguments.only not in name:
            continue
        if configuration["missing"]:
            report.row("skipped", name, configuration["missing"])
            continue
        left = end - time.monotonic()
        if left < 10:
            report.row("skipped", name, "no time left; run this part alone with --parts nccl --scale 300")
            continue
        folder = os.path.join(arguments.out, "logs", "nccl-" + name.replace(",", "").replace(" ", "-"))
        os.makedirs(folder, exist_ok=True)
        for old in glob.glob(os.path.join(folder, "*")):
            os.remove(old)

        def environment(rank):
            env = ranks.node_environment(rank, arguments.plugin, os.path.join(folder, f"nccl.{rank}"))
            env.update(ranks.older_nccl(arguments.plugin))
            env.update(configuration["environment"])
            return env

        group = ranks.Group(configuration["count"], lambda r: rank_of(r, configuration["count"], configuration, folder),
                            environment, lambda r: os.path.join(folder, f"rank{r}.log"), min(45, left - 2))
        group.wait()
        reports, logs = what_happened(folder, configuration)
        carried = ranks.summaries(logs)
        failures = [f for r in reports for f in r["failures"]]
        cases = sum(r["cases"] for r in reports)
        worst = max((r["worst"] for r in reports), default=0)
        words = ", ".join(f"{func} {t['coded']} of {t['ops']} coded, {t['bytes'] / max(t['wire'], 1):.2f} times fewer bytes"
                          for func, t in sorted(carried.items()))
        results.append({"name": name, "seconds": round(group.took, 1), "cases": cases, "failures": failures,
                        "worst_nmse": worst, "carried": carried, "status": group.status})
        if failures:
            report.row("failed", name, f"{len(failures)} of {cases} results wrong, first: {failures[0]}")
            continue
        if not group.passed():
            at = ranks.last_line(os.path.join(folder, "rank0.log"))
            warned = ranks.trouble(logs)
            report.row("failed", name, f"{group.why()}; rank 0 was at: {at}{'; ' + warned[0] if warned else ''}")
            continue
        # The plugin must have carried it, and coded what it should.
        missing = [f for f in ("reduce_scatter", "all_gather", "all_reduce")
                   if not carried.get(f, {}).get("ops") and
                   (f != "all_reduce" or configuration["records"] and not configuration["trains"])]
        sums = ["reduce_scatter"] if configuration["coded"] or configuration["trains"] else []
        if configuration["coded"] and configuration["records"] and not configuration["trains"]:
            sums.append("all_reduce")
        uncoded = [f for f in sums if not carried.get(f, {}).get("coded")]
        detail = f"{cases} results right, worst error of coded sums {worst:.4f}, {group.took:.0f} s; {words}"
        if missing:
            report.row("failed", name, f"the plugin's summary has no {' and no '.join(missing)}: NCCL did not use it; {detail}")
        elif configuration["gpu"] and ON_GPU not in logs:
            said = [line.split("NET/nibble : ", 1)[1] for line in logs.splitlines()
                    if "NET/nibble : " in line and ("codecs run on the CPU" in line or "hand over host memory" in line)]
            report.row("failed" if configuration["records"] else "skipped", name,
                       f"the GPU's codecs were not used: {said[0] if said else 'the log does not say why'}; {detail}")
        elif uncoded:
            report.row("failed", name, f"no {' and no '.join(uncoded)} was coded; {detail}")
        elif configuration["trains"] and RECOGNISED not in logs:
            report.row("failed", name, f"coded, but not because the weights follow; {detail}")
        else:
            report.row("passed", name, detail)
    with open(os.path.join(arguments.out, "nccl.json"), "w") as f:
        json.dump({"nccl": ranks.nccl_version(), "torch": torch.__version__, "configurations": results}, f, indent=1)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
