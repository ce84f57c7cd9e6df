# SPDX-License-Identifier: Apache-2.0
"""Processes of a check: forked, so that PyTorch is imported once, each with its own environment, log and time limit.

The caller must not have touched CUDA. A rank that outlives its limit is killed with the others of its group, and no rank
outlives the process that forked it.
"""
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
import traceback

PR_SET_PDEATHSIG = 1


def _start(target, rank, environment, log):
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        result = target(rank)
        status = int(result or 0)
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else 0 if leave.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status & 255)


class Group:
    """`count` ranks that run target(rank), with environment(rank) and log files log(rank)."""

    def __init__(self, count, target, environment, log, seconds):
        self.end = time.monotonic() + seconds
        self.began = time.monotonic()
        self.status = [None] * count
        self.pids = [_start(target, r, environment(r), log(r)) for r in range(count)]
        self.late = False
        self.took = 0.0

    def poll(self):
        """Whether all ranks have ended; one that fails gives the others ten seconds to notice."""
        for rank, pid in enumerate(self.pids):
            if self.status[rank] is not None:
                continue
            got, status = os.waitpid(pid, os.WNOHANG)
            if got:
                self.status[rank] = os.waitstatus_to_exitcode(status)
                if self.status[rank]:
                    self.end = min(self.end, time.monotonic() + 10)
        self.took = time.monotonic() - self.began
        if None not in self.status:
            return True
        if time.monotonic() > self.end:
            self.late = not any(s for s in self.status if s is not None)
            self.kill()
            return True
        return False

    def kill(self):
        for rank, pid in enumerate(self.pids):
            if self.status[rank] is None:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                self.status[rank] = -signal.SIGKILL

    def wait(self):
        while not self.poll():
            time.sleep(0.02)
        return self.passed()

    def passed(self):
        return all(s == 0 for s in self.status)

    def why(self):
        if self.late:
            return f"not done within its time ({self.took:.0f} s)"
        return "ranks ended with " + " ".join(map(str, self.status))


def last_line(path):
    """What a rank said last, for the reader of a table."""
    try:
        with open(path, errors="replace") as f:
            lines = [line.strip() for line in f if line.strip()]
        return lines[-1][:160] if lines else "nothing said"
    except OSError:
        return "no log"


def node_environment(rank, plugin, debug_file):
    """What makes a process a node of its own on a shared GPU; with the plugin unless it is None."""
    env = {
        "NCCL_HOSTID": f"node{rank}",
        "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
        "NCCL_DEBUG_FILE": debug_file,
        "CUDA_MODULE_LOADING": "LAZY",
    }
    if plugin:
        env.update({
            "NCCL_NET_PLUGIN": plugin,
            "NCCL_COLLNET_ENABLE": "1",
            "NCCL_COMM_SPLIT_SHARE_RESOURCES": "1",
            # One GPU a node, and a virtual machine need not show it the NVSwitch.
            "NIBBLE_FORCE_COLLNET": "1",
            # Well below the limits of a step and of a group here: a hang comes back with its cause.
            "NIBBLE_GPU_TIMEOUT": "8",
        })
    else:
        env.update({"NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket"})
    return env


_nccl = None


def nccl_version():
    """The version of PyTorch's NCCL as a tuple, once no_gpu() has asked for it; None if there is none."""
    return _nccl


def older_nccl(plugin):
    """Before 2.28 NCCL finds profiler and tuner only where they are named."""
    version = nccl_version()
    if plugin and version and version < (2, 28):
        return {"NCCL_PROFILER_PLUGIN": plugin, "NCCL_TUNER_PLUGIN": plugin}
    return {}


def knows_gpus(plugin):
    """Whether this build of the plugin has the settings of codecs on a GPU: an unknown setting would do nothing."""
    with open(plugin, "rb") as f:
        library = f.read()
    return b"NIBBLE_GPU_POINTERS" in library and b"NIBBLE_DEVICE" in library


def stand_in(part, report):
    """In a dry run what takes the place of a part's ranks (dry/standin.py), and a row that says so; else None."""
    if not os.environ.get("NB_DRY"):
        return None
    import standin
    report.row("measured", "ranks", "stand-ins: no GPU, no NCCL, nothing was computed or sent")
    return getattr(standin, part)


FIELD = re.compile(r"(\w+)=([-0-9.]+)")


def summaries(text):
    """Totals of the plugin's summary lines: {function: {ops, coded, bytes, wire}}, of all communicators in the log."""
    totals = {}
    for line in text.splitlines():
        at = line.find("NET/nibble : summary ")
        if at < 0:
            continue
        body = line[at:]
        for part in re.split(r" (?=(?:reduce_scatter|all_gather|all_reduce) ops=)", body)[1:]:
            func = part.split(" ", 1)[0]
            fields = {k: float(v) for k, v in FIELD.findall(part)}
            total = totals.setdefault(func, {"ops": 0, "coded": 0, "bytes": 0, "wire": 0})
            for key in total:
                total[key] += int(fields.get(key, 0))
    return totals


def signatures(text):
    """The summary's lines a signature: [{what, ops, coded, feedback, nmse, bytes, wire}]."""
    found = []
    for line in text.splitlines():
        m = re.search(r"NET/nibble : summary .*: signature (\S+?)(?: and others)?: ", line)
        if m:
            fields = {k: float(v) for k, v in FIELD.findall(line[m.end():])}
            fields["what"] = m.group(1)
            found.append(fields)
    return found


def trouble(text):
    """Lines in which NCCL or the plugin warns."""
    return [line for line in text.splitlines() if " NCCL WARN " in line]


def no_gpu():
    """Why PyTorch cannot be used on a GPU here, or None. Asks a process of its own: this one will fork."""
    global _nccl
    code = ("import torch, sys\n"
            "if not torch.version.cuda: sys.exit('this PyTorch is built without CUDA')\n"
            "if not torch.cuda.is_available(): sys.exit('PyTorch finds no CUDA device')\n"
            "if not torch.distributed.is_available(): sys.exit('this PyTorch has no torch.distributed')\n"
            "if not torch.distributed.is_nccl_available(): sys.exit('this PyTorch has no NCCL')\n"
            "print('nccl', *torch.cuda.nccl.version())\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["PyTorch cannot be imported"])[-1]
    for line in done.stdout.splitlines():
        if line.startswith("nccl "):
            _nccl = tuple(int(n) for n in line.split()[1:4])
    return None


class Report:
    """Rows for gpu-check's table, and the part's exit status."""

    def __init__(self):
        self.failed = 0
        self.rows = []

    def row(self, status, name, detail):
        self.failed += status == "failed"
        self.rows.append({"status": status, "name": name, "detail": detail})
        print(f"result {status} {name}: {detail}".replace("\n", " "), flush=True)

    def check(self, ok, name, detail):
        self.row("passed" if ok else "failed", name, detail)
        return ok

    def status(self):
        return 1 if self.failed else 0
