#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which jobs notice a threshold of the recognition?

Sets each number that a #define of plugin/policy/identity and plugin/policy/recognise names to half and to
twice its value, in turn, and plays jobs. A share between a half and 1 gets half and twice its distance from 1
instead. By hand, from the build folder (`make tests/jobs/jobs`):

    thresholds.py -o new.csv                   # all thresholds: an hour on one core. Skips the file's rows
    thresholds.py -o new.csv KEEP_Z NB_MOST    # these
    thresholds.py table new.csv                # the table of results, for docs/results

A job notices where its row of `tests/jobs/jobs -s SEED` changes: operations quantized or fed wrongly,
gradients coded and fed in per cent.
"""
import argparse
import csv
import glob
import os
import re
import subprocess
import sys
import tempfile

FOLDERS = ("identity", "recognise")
NUMBER = r"(\(1\.0f / ([0-9.]+)f\)|([0-9]+(?:\.[0-9]+)?)([uf]?))"
DEFINE = re.compile(r"^#define (\w+)[ \t]+" + NUMBER + r"(?=\s|$)", re.M)
# Jobs that end before the plugin is sure, or in which proofs are scarce: others notice little.
JOBS = """fsdp2-low-rate fsdp2-alike fsdp2-layerdrop fsdp2-contrastive-alike fsdp2-frozen rare-weights-inside
    rare-averages-inside rare-activations-fsdp1 fsdp2-gathered-momentum hsdp tp-lora kfac-factor teacher-byol
    late-update-sgd unfreezing qlora-kept gan-kept ppo-alike adapters-in-turns distilled-logits
    experts-of-changing-sizes checkpoint-inside masters-instead batch-ramp""".split()
FLAGS = ("DEFS", "DEFAULT_INCLUDES", "INCLUDES", "AM_CPPFLAGS", "CPPFLAGS", "AM_CFLAGS", "CFLAGS")
FIELDS = ("file", "threshold", "value", "tried", "wrong", "changed")


def thresholds(top):
    """Yield file, name and match of each number."""
    for folder in FOLDERS:
        for path in sorted(glob.glob(f"{top}/plugin/policy/{folder}/*.[ch]")):
            with open(path) as f:
                for found in DEFINE.finditer(f.read()):
                    yield os.path.relpath(path, top), found[1], found


def variants(found):
    """Return the two values to try, as C."""
    if found[3]:
        return [f"(1.0f / {k * float(found[3])}f)" for k in (2, 0.5)]
    number, suffix = float(found[4]), found[5]
    if "." not in found[4]:
        return [f"{n}{suffix}" for n in (int(number) // 2, 2 * int(number)) if n]
    half, twice = number / 2, 2 * number
    if 0.5 < number < 1:
        half, twice = 2 * number - 1, (1 + number) / 2
    return [f"{round(n, 6)}{suffix}" for n in (half, twice)]


class Build:
    """Compiles and links tests/jobs/jobs with changed files."""

    def __init__(self, folder):
        names = ("CC", *FLAGS, "top_srcdir", "tests_jobs_jobs_OBJECTS")
        rule = "print: ; @" + "; ".join(f"echo '$({n})'" for n in names)
        out = subprocess.run(["make", "-s", "--no-print-directory", f"--eval={rule}", "print"], check=True,
                             capture_output=True, text=True).stdout
        self.values = dict(zip(names, out.split("\n")))
        self.folder = folder
        self.top = self.values["top_srcdir"]

    def program(self, path, text):
        """Return the program in which `text` replaces the file `path`, or None where it does not compile."""
        changed = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(changed), exist_ok=True)
        with open(changed, "w") as f:
            f.write(text)
        v = self.values
        flags = " ".join(v[n] for n in FLAGS)
        objects = []
        # Internal headers change the files of their folder, others all of plugin/policy.
        where = os.path.dirname(path) if path.endswith("internal.h") else "plugin/policy/*"
        sources = [path] if path.endswith(".c") else glob.glob(f"{self.top}/{where}/*.c")
        for source in sources:
            objects.append(os.path.join(self.folder, f"{len(objects)}.o"))
            at = changed if source == path else source
            compile_it = f"{v['CC']} -I{self.folder}/plugin {flags} -fPIC -w -c -o {objects[-1]} {at}"
            if subprocess.run(compile_it, shell=True, check=False).returncode:
                os.unlink(changed)
                return None
        program = os.path.join(self.folder, "jobs")
        # An object of an archive is left out where another one before it defines all that is asked of it.
        link = [v["CC"], v["AM_CFLAGS"], v["CFLAGS"], "-o", program, v["tests_jobs_jobs_OBJECTS"], *objects]
        libraries = " ".join(f".libs/libnibble{n}.a" for n in ("_jobs_values", "_emulate", ""))
        subprocess.run(f"{' '.join(link)} {libraries} -lm -ldl -pthread", shell=True, check=True)
        os.unlink(changed)
        return program


def rows(program, seed, jobs):
    """Play jobs. Return for each: quantized wrongly, fed wrongly, coded, fed."""
    command = [program, "-s", str(seed), *jobs]
    out = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = (line.split() for line in out.split("\n"))
    return {w[0]: tuple(w[2:6]) for w in found if len(w) >= 7 and w[1].isdigit()}


def sweep(args):
    """Try all thresholds that the file lacks."""
    done = set()
    if os.path.exists(args.output):
        with open(args.output, newline="") as f:
            done = {(r["file"], r["threshold"], r["tried"]) for r in csv.DictReader(f)}
    with tempfile.TemporaryDirectory() as folder, open(args.output, "a", newline="") as f:
        build = Build(folder)
        out = csv.DictWriter(f, FIELDS)
        if not done and not f.tell():
            out.writeheader()
        usual = rows("tests/jobs/jobs", args.seed, JOBS)
        if len(usual) != len(JOBS):
            sys.exit(f"tests/jobs/jobs played {len(usual)} of {len(JOBS)} jobs")
        if not done:
            shares = ", ".join(f"{j} {r[2]}/{r[3]}" for j, r in usual.items())
            out.writerow({"threshold": "usual", "changed": shares})
        for path, name, found in thresholds(build.top):
            if args.names and name not in args.names:
                continue
            for tried in variants(found):
                if (path, name, tried) in done:
                    continue
                text = found.string[:found.start(2)] + tried + found.string[found.end(2):]
                program = build.program(path, text)
                now = rows(program, args.seed, JOBS) if program else {}
                wrong = [j for j, r in now.items() if r[:2] != usual[j][:2]]
                changed = [f"{j} {r[2]}/{r[3]}" for j, r in now.items() if r != usual[j] and j not in wrong]
                if not program:
                    changed = ["does not compile"]
                elif len(now) != len(JOBS):
                    changed = ["does not end"]
                row = (path, name, found[2], tried, " ".join(wrong), ", ".join(changed))
                out.writerow(dict(zip(FIELDS, row)))
                f.flush()


def table(args):
    """Print the jobs that notice each threshold."""
    with open(args.file, newline="") as f:
        all_rows = list(csv.DictReader(f))
    usual = [r for r in all_rows if r["threshold"] == "usual"]
    all_rows = [r for r in all_rows if r not in usual]
    print("".join(f"As they are: {r['changed']}\n\n" for r in usual), end="")
    print("| file | threshold | value | tried | quantized or fed wrongly | coded/fed, % |")
    print("|---|---|---|---|---|---|")
    for r in all_rows:
        if r["wrong"] or r["changed"]:
            name = r["file"].replace("plugin/policy/", "")
            cells = [name, *(r[f] for f in FIELDS[1:])]
            print("|", " | ".join(cells), "|")
    quiet = {(r["file"], r["threshold"]) for r in all_rows}
    quiet -= {(r["file"], r["threshold"]) for r in all_rows if r["wrong"] or r["changed"]}
    print("\nNo job notices: " + ", ".join(f"`{name}`" for _, name in sorted(quiet)))


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("-o", "--output", help="file of the results, comma-separated")
    parser.add_argument("-s", "--seed", type=int, default=3, help="seed of the jobs (default 3)")
    parser.add_argument("names", nargs="*", metavar="NAME", help="thresholds (default all), or: table FILE")
    args = parser.parse_args()
    if args.names[:1] == ["table"] and len(args.names) == 2:
        args.file = args.names[1]
        table(args)
    elif args.output:
        sweep(args)
    else:
        parser.error("no -o FILE")


if __name__ == "__main__":
    main()
