#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layers, folders and private headers of the library, from its objects and its includes.
tests/check-layers.sh runs it.

    layers.py SRCDIR OBJECT... [--extra NAME=OBJECT]... [--extra-source NAME=FILE]...

An OBJECT is a path in the build folder, as libtool makes them: plugin/net/tcp/.libs/send.o. It stands for the source
plugin/net/tcp/send.c, which is how offences name it. The extras add objects and sources under a name of the caller's.

The rules come from the places where people read them: the layers from the block ```layers of docs/architecture.md, the files
that may have mutable globals from the head comment of plugin/base/context.h. Lines of the block:

    coll                       a layer. It may use the layers on the lines below
    state | device             layers side by side, which must not use each other
    state -> device (headers)  except that state may use device, here its headers only
    policy: job > a | b > c    the folders inside policy. Each may use the folders to the right of its own ">"
    base shows log.h clock.h   headers of a folder that other folders may include, besides FOLDER/FOLDER.h

Folders inside a layer without such a line may use each other in any direction, but not in a circle. Files of a
folder may use each other freely. A folder may include the headers that the folder around it shows: a table of
functions is declared there, and the folders inside implement it.

It prints one line for each offence:

    cycle FOLDER -> FOLDER: FILE FILE ...     these folders use each other in a circle, by these files
    include-cycle FILE: FILE FILE ...         these headers include each other in a circle
    symbol FILE -> FILE: SYMBOL ...           an object refers to an object of a folder that its own folder must not use
    include FILE -> FILE                      the same for an include
    private FILE -> FILE                      a file includes a header that another folder does not show
    global FILE: SYMBOL                       a mutable variable outside of any function's stack
    rule ...                                  a rule that cannot be read, or is not needed

Exit status: 0 without offences, 1 with offences, 2 when it could not check.
"""
import collections
import os
import re
import subprocess
import sys

ROOTS = ("plugin", "kernels", "include")
SUFFIXES = (".c", ".h", ".def", ".cu", ".cuh")
# Names that compilers add: sanitizers, coverage.
INSTRUMENTATION = re.compile(r"^(__?_?asan|__odr_asan|__ubsan|__tsan|__gcov|__llvm|__prof|__sancov|__start_|__stop_)")
# Sections that are read-only once the loader has done its work.
READ_ONLY = (".data.rel.ro", ".rodata", ".text", ".eh_frame", ".init_array", ".fini_array")


def give_up(text):
    print("layers.py: " + text, file=sys.stderr)
    sys.exit(2)


def folder(name):
    """Return the folder of a file below its root: "coll/flow" for plugin/coll/flow/send.c, "" for the build's config.h."""
    parts = name.split("/")
    if parts[0] == "plugin" and len(parts) > 2:
        return "/".join(parts[1:-1])
    return parts[0] if parts[0] in ROOTS else ""


def layer(where):
    return where.split("/")[0]


# ---- rules -----------------------------------------------------------------------------------------------

class Layers:
    """The block of docs/architecture.md."""

    def __init__(self, srcdir, offences):
        self.path = os.path.join(srcdir, "docs/architecture.md")
        self.offences = offences
        with open(self.path, encoding="utf-8") as f:
            blocks = re.findall(r"^```layers\n(.*?)^```", f.read(), re.S | re.M)
        if len(blocks) != 1:
            give_up(f"{self.path} has {len(blocks)} blocks of layers instead of one")
        self.line = {}    # layer: number of its line
        self.arrows = {}  # (from, to): whether for headers only
        self.inner = {}   # layer: {folder inside: its place}
        self.shown = {}   # header that a folder shows besides its own: whether another folder includes it
        self.used = set()
        for n, text in enumerate(blocks[0].splitlines()):
            self.read(n, text.strip())
        for a, b in self.arrows:
            if self.line.get(a) is None or self.line.get(a) != self.line.get(b):
                self.rule(f"{a} -> {b} is not between folders of one line")

    def rule(self, text):
        self.offences.add(f"rule docs/architecture.md: {text}")

    def read(self, n, text):
        arrow = re.fullmatch(r"(\w+) -> (\w+)( \(headers\))?", text)
        shows = re.fullmatch(r"([\w/]+) shows ((?:[\w.]+ ?)+)", text)
        inner = re.fullmatch(r"(\w+): ([\w >|]+)", text)
        if arrow:
            self.arrows[arrow[1], arrow[2]] = bool(arrow[3])
        elif shows:
            for name in shows[2].split():
                self.shown[f"{shows[1]}/{name}"] = False
        elif inner:
            self.inner[inner[1]] = {name.strip(): place for place, names in enumerate(inner[2].split(">"))
                                    for name in names.split("|")}
        else:
            for name in text.split("|"):
                if not re.fullmatch(r"\w+", name.strip()) or name.strip() in self.line:
                    give_up(f"{self.path}: cannot read the layers in \"{text}\"")
                self.line[name.strip()] = n

    def allowed(self, a, b, header):
        """Return whether files of folder a may use files of folder b."""
        if a == b or b == "":
            return True
        over, under = layer(a), layer(b)
        if over == under:
            place = self.inner.get(over, {})
            here, there = (place.get(x.split("/")[-1], -1) for x in (a, b))
            return not place or here < there or header and a.startswith(b + "/")
        if self.line[over] < self.line[under]:
            return True
        if (over, under) in self.arrows and (header or not self.arrows[over, under]):
            self.used.add((over, under))
            return True
        return False

    def shows(self, header):
        """Return whether the folder of this header shows it to other folders."""
        where, name = os.path.split(header.removeprefix("plugin/"))
        if where == "" or not header.startswith("plugin/"):
            return True
        if f"{where}/{name}" in self.shown:
            self.shown[f"{where}/{name}"] = True
            return True
        return name == os.path.basename(where) + ".h"

    def check_names(self, present):
        for name in sorted({layer(x) for x in present} - set(self.line)):
            self.rule(f"its layers lack {name}")
            self.line[name] = -1
        for name in sorted(set(self.line) - {layer(x) for x in present}):
            self.rule(f"there is no {name}")
        for around, places in self.inner.items():
            inside = {x.split("/")[-1] for x in present if layer(x) == around}
            for name in sorted(inside ^ set(places)):
                self.rule(f"{around}: {name} is {'missing in the line' if name in inside else 'no folder'}")

    def check_needed(self):
        for a, b in sorted(set(self.arrows) - self.used):
            self.rule(f"{a} -> {b} is not needed")
        for header in sorted(x for x in self.shown if not self.shown[x]):
            self.rule(f"no other folder includes {header}")


def read_globals(srcdir):
    """Return the files that may have mutable globals, from the list in context.h."""
    path = os.path.join(srcdir, "plugin/base/context.h")
    with open(path, encoding="utf-8") as f:
        head = f.read().split("*/")[1]
    return {"plugin/" + name for name in re.findall(r"^ \*   ([\w/]+/\w+\.c)\s+\S", head, re.M)}


# ---- files and objects -----------------------------------------------------------------------------------

def source_of(obj):
    """Return an object's source: plugin/net/tcp/.libs/libnibble_la-send.o -> plugin/net/tcp/send.c"""
    name = obj.replace("/.libs/", "/")
    name = re.sub(r"/lib\w+_la-([^/]*)$", r"/\1", name)
    return re.sub(r"\.l?o$", ".c", name)


def read_objects(objects):
    """Return, from [(name, path)]: {name: symbols defined}, {name: symbols referred to}, {name: mutable variables}"""
    name_of = {path: name for name, path in objects}
    defined, needed, mutable = ({name: set() for name, _ in objects} for _ in range(3))
    # One process for all: with a process for each object most of the time went into starting them.
    run = subprocess.run(["nm", "-f", "sysv"] + list(name_of), capture_output=True, text=True, env=dict(os.environ, LC_ALL="C"))
    if run.returncode:
        give_up(f"nm: {run.stderr.strip()}")
    name = None
    seen = set()
    for row in run.stdout.splitlines():
        if row.startswith("Symbols from "):
            name = name_of[row[len("Symbols from "):-1]]
            seen.add(name)
            continue
        field = [x.strip() for x in row.split("|")]
        if len(field) != 7 or field[0] == "Name":
            continue
        symbol, kind, section = field[0], field[2], field[6]
        if kind in "Uw":
            needed[name].add(symbol)
            continue
        if kind.isupper():
            defined[name].add(symbol)
        if kind in "bBdDCVvuGgsS" and not section.startswith(READ_ONLY) and not INSTRUMENTATION.match(symbol):
            # A static variable of a function is `name.3` for gcc and `function.name` for clang.
            mutable[name].add([x for x in symbol.split(".") if not x.isdigit()][-1])
    if seen != set(name_of.values()):
        give_up(f"nm says nothing of {' '.join(sorted(set(name_of.values()) - seen))}")
    return defined, needed, mutable


def read_includes(srcdir, extra):
    """Return {file: files of the tree that it includes}"""
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
    """Return strongly connected components of more than one node (Tarjan's, without recursion), each sorted."""
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
    """Check symbols, and return {object: objects that it refers to}."""
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


def check_includes(layers, includes, offences):
    for a in includes:
        for b in includes[a]:
            if not layers.allowed(folder(a), folder(b), True):
                offences.add(f"include {a} -> {b}")
            if folder(a) != folder(b) and not layers.shows(b):
                offences.add(f"private {a} -> {b}")
    for group in cycles(includes):
        for file in group:
            offences.add(f"include-cycle {file}: {' '.join(sorted(includes[file] & set(group)))}")


def check_folders(references, includes, offences):
    """Add offences for folders that use each other in a circle."""
    files = collections.defaultdict(set)  # (folder, folder): files of the first folder that use the second
    for graph in (references, includes):
        for a in graph:
            for b in graph[a]:
                here, there = folder(a), folder(b)
                seam = graph is includes and here.startswith(there + "/")
                if here != there and there and not seam:
                    files[here, there].add(a)
    graph = collections.defaultdict(set)
    for a, b in files:
        graph[a].add(b)
    for group in cycles(graph):
        for a in group:
            for b in graph[a] & set(group):
                offences.add(f"cycle {a} -> {b}: {' '.join(sorted(files[a, b]))}")


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
    layers.check_names({folder(f) for f in list(defined) + list(includes)} - {""})

    references = check_symbols(layers, defined, needed, offences)
    check_includes(layers, includes, offences)
    check_folders(references, includes, offences)
    layers.check_needed()

    may = read_globals(srcdir)
    for file, symbols in mutable.items():
        if file not in may:
            offences.update(f"global {file}: {symbol}" for symbol in symbols)
    for file in may:
        if file not in mutable:
            # Some need headers that a machine may lack.
            if not os.path.exists(os.path.join(srcdir, file)):
                offences.add(f"rule plugin/base/context.h: there is no {file}")
        elif not mutable[file]:
            offences.add(f"rule plugin/base/context.h: {file} has no mutable globals")

    for offence in sorted(offences):
        print(offence)
    print(f"{len(defined)} objects, {sum(len(x) for x in references.values())} references, {len(includes)} sources, "
          f"{sum(len(x) for x in includes.values())} includes", file=sys.stderr)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
