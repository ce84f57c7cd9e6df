#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keep the variables of packages/variables the same wherever users read or get them.

    variables.py SRCDIR [write]     compare, or replace, the lines of the files below
"""
import pathlib
import re
import sys


def export(variables):
    return [f"    {f'export {name}={value}':40}  # {why}" for name, value, why in variables]


def assignments(variables):
    return " ".join(f"{name}={value}" for name, value, _ in variables)


def yaml(variables):
    quoted = ((name, f'"{value}"' if value.isdigit() else value) for name, value, _ in variables)
    return [f"    - {{name: {name}, value: {value}}}" for name, value in quoted]


FILES = {
    "README.md": export,
    "docs/operators.md": export,
    "docs/recipes.md": lambda v: [f"    export {assignments(v)}"],
    "docs/recipes.md, Kubernetes": yaml,
    "packages/Containerfile": lambda v: [f"ENV {assignments(v)}"],
}


def read(source):
    lines = (source / "packages/variables").read_text().splitlines()
    return [re.match(r"(\w+)=(\S+) (.*)", line).groups() for line in lines if not line.startswith("#")]


def replaced(text, first, lines):
    """Return `text` with `lines` where such lines stand. The first of them sets the variable `first`. Return None where no
    line does."""
    form, old = lines[0].partition(first)[0], text.splitlines()
    begin = next((i for i, line in enumerate(old) if line.startswith(form + first)), None)
    if begin is None:
        return None
    heads = [re.match(re.escape(form) + r"\w+", line)[0] for line in lines]
    end = begin + 1
    while end < len(old) and any(re.match(re.escape(head) + r"\b", old[end]) for head in heads[1:]):
        end += 1
    return "\n".join(old[:begin] + lines + old[end:]) + "\n"


def main():
    source, write = pathlib.Path(sys.argv[1]), sys.argv[2:] == ["write"]
    variables, bad = read(source), 0
    for name, form in FILES.items():
        path = source / name.partition(",")[0]
        before = path.read_text()
        after = replaced(before, variables[0][0], form(variables))
        if after is None:
            print(f"{path} has no line that sets {variables[0][0]}")
            bad += 1
        elif after != before:
            if write:
                path.write_text(after)
            else:
                print(f'{name} does not have the variables of packages/variables; run "make update-docs"')
                bad += 1
    return bad > 0


sys.exit(main())
