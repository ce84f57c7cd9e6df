#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions of evidence beside those of the codec.

Plays steps of FSDP with large units (tests/jobs/cost) under callgrind. Prints how many instructions of the last
steps were spent in plugin/policy, samples and profiles (plugin/device/host/evidence.c) and positions
(plugin/codec/pick.c), and how many in the codecs. A function's calls in other libraries (log2f, memcpy) count as its
own. From the build folder, with valgrind and its headers at build time:

    make tests/jobs/cost && evidence-cost.py [-n VALUES] [-u UNITS] [-t bf16|fp32] [--steps N] [--counted N] [--top N]

Callgrind does not know AVX-512, so the codec is AVX2's. 77 without valgrind.
"""
import argparse
import collections
import re
import shutil
import subprocess
import sys
import tempfile

PARTS = (
    ("evidence", re.compile(r"plugin/(policy/|codec/pick\.c|device/evidence\.c)")),
    ("hashes", re.compile(r"plugin/codec/hash")),
    ("codec", re.compile(r"plugin/codec/")),
    ("rest of the plugin", re.compile(r"plugin/")),
)


def part_of(path):
    for name, pattern in PARTS:
        if pattern.search(path):
            return name
    return None


class Names:
    """Callgrind writes a name once, as "(7) name", and then "(7)"."""

    def __init__(self):
        self.known = {}

    def get(self, text):
        number, _, name = text.partition(" ")
        if name:
            self.known[number] = name
        return self.known.get(number, text)


def read(path):
    """Return instructions by (part, function). A function belongs to the file that defines it, with all inlined code."""
    files, functions, objects = Names(), Names(), Names()
    costs = collections.Counter()
    here = program = None  # (part, function), and the object whose functions count
    of_file = of_object = called_object = None
    call = False
    with open(path) as f:
        for line in f:
            line = line.rstrip("\n")
            key, _, value = line.partition("=")
            if key == "ob":
                of_object = objects.get(value)
                program = program or of_object
            elif key == "fl":
                of_file = files.get(value)
            elif key in ("fi", "fe", "cfi", "cfl"):
                files.get(value)
            elif key == "fn":
                own = of_object and "tests/jobs" in of_object
                here = (part_of(of_file) if own else None, functions.get(value))
                called_object = of_object
            elif key == "cob":
                called_object = objects.get(value)
            elif key == "cfn":
                functions.get(value)
            elif key == "calls":
                call = True
            elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
                cost = int((line.split() + [0])[1])  # trailing zeros are left out
                if call:
                    if here and here[0] and called_object != of_object:
                        costs[here] += cost
                    called_object = of_object
                    call = False
                elif here and here[0]:
                    costs[here] += cost
    return costs


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("-n", default="6553600", help="values of a unit")
    p.add_argument("-u", default="2", help="units")
    p.add_argument("-t", default="fp32", help="type of the gradients")
    p.add_argument("--steps", default="56")
    p.add_argument("--counted", default="1")
    p.add_argument("--top", type=int, default=0, help="also print so many functions of each part")
    p.add_argument("--program", default="tests/jobs/cost")
    args = p.parse_args()
    if not shutil.which("valgrind"):
        print("valgrind is not there", file=sys.stderr)
        raise SystemExit(77)
    with tempfile.TemporaryDirectory() as folder:
        out = folder + "/out"
        played = subprocess.run(
            ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=" + out, args.program,
             "-n", args.n, "-u", args.u, "-t", args.t, args.steps, args.counted],
            capture_output=True, text=True)
        if played.returncode:
            raise SystemExit(played.stderr)
        print(played.stdout.strip())
        costs = read(out)
    if "headers=0" in played.stdout:
        raise SystemExit("valgrind's headers were not there when tests/jobs/cost was built")
    total = collections.Counter()
    for (part, _), cost in costs.items():
        total[part] += cost
    for part, _ in PARTS:
        print(f"{part:20} {total[part]:15,}  {100 * total[part] / max(total['codec'], 1):8.3f} % of the codec's")
        for (of, function), cost in costs.most_common():
            if of == part and args.top > 0 and cost * 100 >= total[part]:
                print(f"    {function:40.40} {cost:15,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
