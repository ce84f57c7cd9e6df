#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layers and cycles of the library, from its objects and its includes; tests/check-layers.sh runs it.

    layers.py SRCDIR OBJECT... [--extra NAME=OBJECT]... [--extra-source NAME=FILE]...

An OBJECT is a path in the build folder, as libtool makes them: plugin/net/.libs/tcp.o. It stands for the source
plugin/net/tcp.c, which is how offences name it. The extras add objects and sources under a name of the caller's.

The rules are read from where people read them: the layers from the block ```layers of docs/architecture.md, the files
that may have mutable globals from the head comment of plugin/base/context.h. One line is printed for each offence:

    cycle FILE: FILE FILE ...                 these objects refer to each other in a circle
    include-cycle FILE: FILE FILE ...         these headers include each other in a circle
    symbol FILE -> FILE: SYMBOL ...           an object refers to one of a folder that its own must not use
    include FILE -> FILE                      likewise an include
    global FILE: SYMBOL                       a mutable variable outside of any function's stack
    rule ...                                  a rule that cannot be read, or that nothing needs

Exit status: 0 without offences, 1 with some, 2 when it could not look.
"""
import collections
import os
import re
import subprocess
import sys

ROOTS = ("plugin", "kernels", "include")
SUFFIXES = (".c", ".h", ".def", ".cu", ".cuh")
# What compilers add of their own: sanitizers, coverage.
INSTRUMENTATION = re.compile(r"^(__?_?asan|__odr_asan|__ubsan|__tsan|__gcov|__llvm|__prof|__sancov|__start_|__stop_)")
# Sections that are read-only once the loader has done its work.
READ_ONLY = (".data.rel.ro", ".rodata", ".text", ".eh_frame", ".init_array", ".fini_array")


def give_up(text):
    print("layers.py: " + text, file=sys.stderr)
    sys.exit(2)


def folder(name):
    """Of a file: the layer it belongs to. "" for what belongs to none, like the config.h of the build."""
    parts = name.split("/")
    if parts[0] == "plugin" and len(parts) > 2:
        return parts[1]
    return parts[0] if parts[0] in ROOTS else ""


# ---- rules -----------------------------------------------------------------------------------------------

class Layers:
    """A folder may use itself, those on lower lines, and those beside it that an arrow leads to."""

    def __init__(self, srcdir, offences):
        path = os.path.join(srcdir, "docs/architecture.md")
        with open(path, encoding="utf-8") as f:
            blocks = re.findall(r"^```layers\n(.*?)^```", f.read(), re.S | re.M)
        if len(blocks) != 1:
            give_up(f"{path} has {len(blocks)} blocks of layers instead of one")
        self.line = {}
        self.arrows = {}  # (from, to): whether for headers only
        self.used = set()
        for n, text in enumerate(blocks[0].splitlines()):
            arrow = re.fullmatch(r"(\w+) -> (\w+)( \(headers\))?", text.strip())
            if arrow:
                self.arrows[arrow[1], arrow[2]] = bool(arrow[3])
                continue
            for name in text.split("|"):
                if not re.fullmatch(r"\w+", name.strip()) or name.strip() in self.line:
                    give_up(f"{path}: cannot read the layers in \"{text}\"")
                self.line[name.strip()] = n
        for a, b in self.arrows:
            if self.line.get(a) is None or self.line.get(a) != self.line.get(b):
                offences.add(f"rule docs/architecture.md: {a} -> {b} is not between folders of one line")

    def allowed(self, a, b, header):
        if a == b or b == "" or self.line[a] < self.line[b]:
            return True
        if (a, b) in self.arrows and (header or not self.arrows[a, b]):
            self.used.add((a, b))
            return True
        return False

    def check_names(self, present, offences):
        for name in sorted(present - set(self.line)):
            offences.add(f"rule docs/architecture.md: its layers lack {name}")
        for name in sorted(set(self.line) - present):
            offences.add(f"rule docs/architecture.md: there is no {name}")
        for name in present:
            self.line.setdefault(name, -1)

    def check_arrows(self, offences):
        for a, b in sorted(set(self.arrows) - self.used):
            offences.add(f"rule docs/architecture.md: nothing needs {a} -> {b}")


def read_globals(srcdir):
    """Files that may have mutable globals, of the list in context.h."""
    path = os.path.join(srcdir, "plugin/base/context.h")
    with open(path, encoding="utf-8") as f:
        head = f.read().split("*/")[1]
    return {"plugin/" + name for name in re.findall(r"^ \*   (\w+/\w+\.c)\s+\S", head, re.M)}


# ---- what there is ---------------------------------------------------------------------------------------

def source_of(obj):
    """plugin/net/.libs/libnibble_la-tcp.o -> plugin/net/tcp.c"""
    name = obj.replace("/.libs/", "/")
    name = re.sub(r"/lib\w+_la-([^/]*)$", r"/\1", name)
    return re.sub(r"\.l?o$", ".c", name)


def read_objects(objects):
    """From [(name, path)]: {name: symbols defined}, {name: symbols referred to}, {name: mutable variables}"""
    defined, needed, mutable = {}, {}, {}
    env = dict(os.environ, LC_ALL="C")
    for name, path in objects:
        run = subprocess.run(["nm", "-f", "sysv", path], capture_output=True, text=True, env=env)
        if run.returncode:
            give_up(f"nm {path}: {run.stderr.strip()}")
        d, n, m = set(), set(), set()
        for row in run.stdout.splitlines():
            field = [x.strip() for x in row.split("|")]
            if len(field) != 7 or field[0] == "Name":
                continue
            symbol, kind, section = field[0], field[2], field[6]
            if kind in "Uw":
                n.add(symbol)
                continue
            if kind.isupper():
                d.add(symbol)
            if kind in "bBdDCVvuGgsS" and not section.startswith(READ_ONLY) and not INSTRUMENTATION.match(symbol):
                # A static variable of a function is `name.3` for gcc and `function.name` for clang.
                m.add([x for x in symbol.split(".") if not x.isdigit()][-1])
        defined[name], needed[name], mutable[name] = d, n, m
    return defined, needed, mutable


def read_includes(srcdir, extra):
    """{file: files of ours that it includes}"""
    sources = dict(extra)
    for root in ROOTS:
        for path, _, names in os.walk(os.path.join(srcdir, root)):
            for name in names:
                if name.endswith(SUFFIXES):
                    file = os.path.join(path, name)
                    sources[os.path.relpath(file, srcdir)] = file
    includes = {}
    for name, file in sources.items():
        with open(file, encoding="utf-8") as f:
            wanted = re.findall(r'^[ \t]*#[ \t]*include[ \t]+["<]([^">]+)[">]', f.read(), re.M)
        includes[name] = set()
        for want in wanted:
            for base in (os.path.dirname(name), "include", "plugin", "", "kernels"):
                found = os.path.normpath(os.path.join(base, want))
                if found in sources:
                    includes[name].add(found)
                    break
    return includes


def cycles(graph):
    """Strongly connected components of more than one node (Tarjan's, without recursion), each sorted."""
    index, low, stack, on, found = {}, {}, [], set(), []
    for root in sorted(graph):
        work = [] if root in index else [(root, None)]
        while work:
            node, rest = work.pop()
            if rest is None:
                index[node] = low[node] = len(index)
                stack.append(node)
                on.add(node)
                rest = iter(sorted(graph.get(node, ())))
            for to in rest:
                if to not in index:
                    work += [(node, rest), (to, None)]
                    break
                if to in on:
                    low[node] = min(low[node], index[to])
            else:
                if low[node] == index[node]:
                    group = stack[stack.index(node):]
                    del stack[-len(group):]
                    on.difference_update(group)
                    if len(group) > 1:
                        found.append(sorted(group))
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
    return found


# ---- offences --------------------------------------------------------------------------------------------

def check_symbols(layers, defined, needed, offences):
    where = {symbol: name for name, symbols in defined.items() for symbol in symbols}
    edges = collections.defaultdict(lambda: collections.defaultdict(set))
    for name, symbols in needed.items():
        for symbol in symbols:
            if where.get(symbol, name) != name:
                edges[name][where[symbol]].add(symbol)
    for a in edges:
        for b in edges[a]:
            if not layers.allowed(folder(a), folder(b), False):
                offences.add(f"symbol {a} -> {b}: {' '.join(sorted(edges[a][b]))}")
    return {a: set(edges[a]) for a in edges}


def check_cycles(kind, graph, offences):
    for group in cycles(graph):
        for file in group:
            others = sorted(graph[file] & set(group))
            offences.add(f"{kind} {file}: {' '.join(others)}")


def main():
    extra, extra_sources, names = [], [], []
    arguments = sys.argv[1:]
    while arguments:
        a = arguments.pop(0)
        if a in ("--extra", "--extra-source") and arguments:
            name, _, file = arguments.pop(0).partition("=")
            (extra if a == "--extra" else extra_sources).append((name, file))
        else:
            names.append(a)
    if len(names) < 2:
        give_up("no objects given")
    srcdir, objects = names[0], [(source_of(o), o) for o in names[1:]] + extra

    offences = set()
    layers = Layers(srcdir, offences)
    defined, needed, mutable = read_objects(objects)
    includes = read_includes(srcdir, extra_sources)
    layers.check_names({folder(f) for f in list(defined) + list(includes)}, offences)

    graph = check_symbols(layers, defined, needed, offences)
    check_cycles("cycle", graph, offences)
    check_cycles("include-cycle", includes, offences)
    for a in includes:
        for b in includes[a]:
            if not layers.allowed(folder(a), folder(b), True):
                offences.add(f"include {a} -> {b}")
    layers.check_arrows(offences)

    may = read_globals(srcdir)
    for file, symbols in mutable.items():
        if file not in may:
            offences.update(f"global {file}: {symbol}" for symbol in symbols)
    for file in may:
        if file not in mutable:
            # Some need headers that are not everywhere.
            if not os.path.exists(os.path.join(srcdir, file)):
                offences.add(f"rule plugin/base/context.h: there is no {file}")
        elif not mutable[file]:
            offences.add(f"rule plugin/base/context.h: {file} has no mutable globals")

    for offence in sorted(offences):
        print(offence)
    print(f"{len(defined)} objects, {sum(len(x) for x in graph.values())} references, {len(includes)} sources, "
          f"{sum(len(x) for x in includes.values())} includes", file=sys.stderr)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
