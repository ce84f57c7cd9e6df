#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Tell which tests exercise each module of the plugin: modules.py SOURCE_TREE write | check

A test names a module when it has the module's name, or when its source, or a header of tests/ that it includes, names a
function or table that the module defines. A module that no test names is exercised through modules that call it. A codec's variant has the test of its
family, since macros make its names. Exported tables have the programs that load the built plugin. Write the table into
tests/README.md, or check it. Exit with 1 where it differs, or a module has no test.
"""
import re
import sys
from pathlib import Path

FUNCTION = re.compile(r"^(?!static\b|typedef\b|#)\w[\w \t*]*?\b(nb_\w+|nccl\w+)\([^;{}]*?\)\s*\n\{", re.M)
TABLE = re.compile(r"^(?!static\b|typedef\b|extern\b)\w[\w \t*]*?\b(nb_\w+)(?:\[[^\]]*\])*\s*=", re.M)
WORD = re.compile(r"\b[A-Za-z_]\w+\b")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.S)
SHOWN = 4
HEADING = "## Modules and their tests\n"


def words(path, top, seen):
    """Return the words of a source and of the headers of tests/ that it includes, without comments and texts."""
    if path in seen:
        return set()
    seen.add(path)
    text = path.read_text()
    found = set(WORD.findall(CODE.sub(" ", INCLUDE.sub("", text))))
    for name in INCLUDE.findall(text):
        for at in (path.parent / name, top / name):
            if at.is_file() and top / "tests" in at.parents:
                found |= words(at, top, seen)
                break
    return found


def family(module, top):
    """Return the test of a module whose names macros make, such as a codec's variant: ulp_avx2.c, test_ulp."""
    parts = module.stem.split("_")
    for n in range(len(parts), 0, -1):
        for root in (top / "tests", top):
            for folder in (*module.parent.relative_to(top / "plugin").parts, "packages"):
                test = root / folder / f"test_{'_'.join(parts[:n])}.c"
                if test.is_file():
                    return test.relative_to(root).with_suffix("")
    return None


def main():
    top = Path(sys.argv[1]).resolve()
    plugin, tests = top / "plugin", top / "tests"
    modules = sorted(p for p in plugin.rglob("*.c"))
    text = {m: CODE.sub(" ", m.read_text()) for m in modules}
    names = {m: {n for r in (FUNCTION, TABLE) for n in r.findall(text[m])} for m in modules}
    used = {m: set(WORD.findall(text[m])) for m in modules}
    by_test = {t: words(t, top, set()) for t in sorted(tests.rglob("*.c"))}
    reached = {}
    for m in modules:
        direct = [t for t, w in by_test.items() if names[m] & w or t.stem == "test_" + m.stem]
        if direct:
            # The program that has the module's name comes first.
            direct.sort(key=lambda t: (m.stem not in t.stem, t.parent.name != m.parent.name, str(t)))
            reached[m] = (direct, None)
    while True:  # callers of the remaining modules, in rings
        more = {}
        for m in modules:
            caller = m not in reached and next((c for c in modules if c in reached and names[m] & used[c]), None)
            if caller:
                more[m] = (reached[caller][0], caller)
        if not more:
            break
        reached.update(more)
    missing = 0
    table = "\n| module | tests |\n|---|---|\n"
    for m in modules:
        name = m.relative_to(plugin)
        if m in reached:
            direct, caller = reached[m]
            cell = ", ".join(f"`{t.relative_to(tests).with_suffix('')}`" for t in direct[:SHOWN if not caller else 2])
            if not caller and len(direct) > SHOWN:
                cell += f" and {len(direct) - SHOWN} more"
            if caller:
                cell = f"through `{caller.relative_to(plugin)}`: {cell}"
        elif family(m, top):
            cell = f"`{family(m, top)}`"
        elif name.parts[0] == "abi":
            cell = "the built plugin: `harness`, `check-exports.sh`"
        else:
            cell = "**none**"
            missing = 1
        table += f"| `{name}` | {cell} |\n"
    page = tests / "README.md"
    before, old = page.read_text().split(HEADING)
    lead, _, rest = old.partition("\n| module |")
    after = rest[rest.index("|\n\n") + 2 :]
    new = before + HEADING + lead + table + after
    if sys.argv[2] == "write":
        page.write_text(new)
    elif new != page.read_text():
        print('FAIL: the modules of tests/README.md are out of date; run "make update-docs"')
        return 1
    print(f"{'FAIL: modules without a test' if missing else 'PASS'}: {len(modules)} modules")
    return missing


if __name__ == "__main__":
    sys.exit(main())
