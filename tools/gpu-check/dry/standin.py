# SPDX-License-Identifier: Apache-2.0
"""Ranks for gpu-check's --dry, in the place of those that use a GPU: they look at what they were started with, leave the files
that real ranks leave, of what nobody computed, and the log that the plugin would write. So nccl_check.py and
training_check.py run through all of their own code: configurations, processes, limits, files, judgements, tables.
"""
import argparse
import json
import os

SUMMARY = "h:1:2 [0] NCCL INFO NET/nibble : "


def misfits(rank):
    """What of the environment is not as a rank's has to be."""
    env = os.environ
    wanted = {"NCCL_HOSTID": f"node{rank}", "CUDA_MODULE_LOADING": "LAZY"}
    if env["NCCL_NET_PLUGIN"] != "none":
        wanted.update({"NIBBLE_GPU_TIMEOUT": "8", "NCCL_COLLNET_ENABLE": "1", "NIBBLE_FORCE_COLLNET": "1"})
        if not os.path.exists(env["NCCL_NET_PLUGIN"]):
            return [f"no plugin at {env['NCCL_NET_PLUGIN']}"]
    return [f"{name}={env.get(name)} instead of {value}" for name, value in wanted.items() if env.get(name) != value]


def log(lines):
    with open(os.environ["NCCL_DEBUG_FILE"], "w") as f:
        for line in lines:
            print(SUMMARY + line, file=f)


def gives_up(name, rank):
    """NB_DRY_DIES=NAME: rank 1 of the run of that name dies."""
    if rank == 1 and os.environ.get("NB_DRY_DIES") == name:
        print("this rank was told to die", flush=True)
        os._exit(3)


def summary(node, coded, recognised):
    ops = "summary comm 0x1f node %d/2: %s" % (node, " ".join(
        f"{func} ops=3 coded={3 * coded} two_hop=0 windows=3 bytes=900 wire={225 if coded else 900} ratio={4 if coded else 1}.00"
        for func in ("reduce_scatter", "all_gather", "all_reduce")))
    lines = [ops, f"summary comm 0x1f node {node}/2: signature reduce_scatter:float32:600@2: ops=3 coded={3 * coded} "
             f"bytes=900 wire=225{' ratio=4.00' if coded else ''}"]
    if recognised:
        lines.append("reduce_scatter:float32:600@2: a gradient (step 11): the gathered weights follow its sums")
    return lines


def nccl(rank, count, configuration, folder):
    """As nccl_check.worker."""
    env = os.environ
    print("init", flush=True)
    gives_up(configuration["name"], rank)
    failures = misfits(rank)
    graded, warm = env.get("NIBBLE_GRAD") == "all", env.get("NIBBLE_WARMUP_STEPS")
    coded = graded and warm == "0"
    recognised = not graded and warm is None and env.get("NIBBLE_RS") == "int4"
    lines = summary(rank, coded or recognised, recognised)
    if env.get("NIBBLE_DEVICE") == "cuda":
        lines.append("cuda: GPU 0 (none): codecs run on it")
    log(lines)
    with open(os.path.join(folder, f"rank{rank}.json"), "w") as f:
        json.dump({"cases": 1, "coded": int(coded), "worst": 0.0, "failures": failures}, f)
    print("done", flush=True)
    return 1 if failures else 0


def training(options):
    """As training_check.train: what the script would leave."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--parallel")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--audit-from", type=int, default=-1)
    args, _ = parser.parse_known_args(options)
    rank, plugin = int(os.environ["RANK"]), os.environ["NCCL_NET_PLUGIN"] != "none"
    gives_up(args.parallel, rank)
    wrong = misfits(rank)
    if wrong:
        print(wrong[0])
        return 1
    exact = not plugin or os.environ.get("NIBBLE_WARMUP_STEPS")
    with open(os.path.join(args.out, f"loss.{rank}.csv"), "w") as f:
        for step in range(args.steps):
            print(f"{step},{5 - 0.01 * step + args.seed + (0 if exact else 0.001)}", file=f)
        for k in range(4):
            print(f"held{k},{4 + 0.1 * k}", file=f)
    with open(os.path.join(args.out, f"digest.{rank}.csv"), "w") as f:
        print("19,00\nend,00", file=f)
    if args.audit_from >= 0 and rank == 0:
        with open(os.path.join(args.out, "audit.json"), "w") as f:
            parts = ("embedding", "blocks")
            json.dump({"distance": dict.fromkeys(parts, 0.0), "norm": dict.fromkeys(parts, 1.0)}, f)
    if plugin:
        log(summary(rank, not exact, False))
    print("this was a stand-in", flush=True)
    return 0
