# SPDX-License-Identifier: Apache-2.0
# Instructions on the usual path of a kernel, from its machine code: reads a cubin of kernels/count.cu, in which profiler events mark
# the path. No disassembler: of an instruction (16 bytes, sm_90 and later) only the operation, branch targets and events are looked at.
#
# usage: sass_count.py CUBIN SOURCES [VALUES]
#
# Prints "NAME VALUE" lines: instructions that a warp issues for a tile (4096 values, four warps), for each value a thread holds
# (32, or as many as are given), by class. What is marked rare is left out, and what only a warp needs whose threads have gone different ways; of two ways
# the longer one counts, a loop as often as there are
# sources, or all but the first, or as it is marked.
import signal
import struct
import sys

RARE, TICKET, ONE_WARP, SOURCE, TIMES, FURTHER = 0, 1, 2, 3, 4, 10  # TIMES + n: passed 2^n times

# Operations by the low nine bits.
BRANCH, EXIT, RETURN, EVENT, CALL = 0x147, 0x14d, 0x150, 0x001, (0x143, 0x144)
MEMORY = {0x180, 0x181, 0x182, 0x184, 0x185, 0x186, 0x188, 0x18a, 0x18b, 0x18c, 0x18d, 0x1a8, 0x1a3, 0x1a9, 0x1ae, 0x1af,
          0x11a, 0x192, 0x18f, 0x1ab, 0x1b9, 0x1bb, 0x0b9}
EXCHANGE = {0x006, 0x086, 0x189, 0x1c4, 0x1a1}
CONTROL = {0x11b, 0x11d, 0x141, 0x142, 0x143, 0x144, 0x145, 0x146, 0x147, 0x148, 0x149, 0x14d, 0x150, 0x15d, 0x118}
FMA = {0x020, 0x021, 0x023, 0x024, 0x025, 0x027, 0x030, 0x031, 0x032, 0x026}


def kind_of(op):
    for name, ops in (("memory", MEMORY), ("exchange", EXCHANGE), ("control", CONTROL), ("multiply-add", FMA)):
        if op in ops:
            return name
    return "logic"


def text_of(cubin):
    """The kernel's code: the section .text.nb_gpu_work of an ELF file."""
    if cubin[:4] != b"\x7fELF":
        sys.exit("sass_count: not a cubin")
    at, size, count, names = struct.unpack_from("<Q10xHHH", cubin, 0x28)[0], *struct.unpack_from("<HHH", cubin, 0x3a)
    sections = [struct.unpack_from("<IIQQQQ", cubin, at + i * size) for i in range(count)]
    for name, _, _, _, offset, length in sections:
        begin = sections[names][4] + name
        if cubin[begin:cubin.index(b"\0", begin)] == b".text.nb_gpu_work":
            return cubin[offset:offset + length]
    sys.exit("sass_count: no kernel nb_gpu_work")


class Instruction:
    def __init__(self, code, at):
        low, high = struct.unpack_from("<QQ", code, at)
        self.op = low & 0x1ff
        self.always = (low >> 12 & 15) == 7 and not (self.op == BRANCH and (high >> 23 & 15) != 7)
        self.target = self.mark = None
        # What only a warp takes that has come apart: BRA.DIV, to where it is brought together for an operation of the whole warp.
        self.apart = self.op == BRANCH and high >> 27 & 1
        if self.op == BRANCH:
            word = high << 64 | low
            offset = (low >> 16 & 0xff) | (word >> 34 & (1 << 48) - 1) << 8
            offset -= (offset >> 55) << 56
            self.target = at + 16 + 4 * offset
        if self.op == EVENT:
            self.mark = (low >> 32 & 0xffff).bit_length() - 1


def blocks_of(code):
    """Basic blocks: lists of instructions, lists of following blocks."""
    all_ = [Instruction(code, at) for at in range(0, len(code), 16)]
    heads = {0}
    for i, x in enumerate(all_):
        if x.target is not None:
            heads.add(x.target // 16)
        if x.op in (BRANCH, EXIT, RETURN):
            heads.add(i + 1)
        if x.mark is not None:  # a mark is for what comes after it
            heads.add(i)
    heads = sorted(h for h in heads if h < len(all_))
    number = {h: k for k, h in enumerate(heads)}
    blocks, following = [], []
    for k, h in enumerate(heads):
        end = heads[k + 1] if k + 1 < len(heads) else len(all_)
        body, last, to = all_[h:end], all_[end - 1], []
        if last.op == BRANCH and not last.apart:
            to.append(number[last.target // 16])
        ends = last.op in (BRANCH, EXIT, RETURN) and last.always and not last.apart
        if not ends and k + 1 < len(heads):
            to.append(k + 1)
        blocks.append(body)
        following.append(to)
    return blocks, following


def order_of(following):
    """Reverse postorder from block 0."""
    seen, order, stack = {0}, [], [(0, iter(following[0]))]
    while stack:
        block, rest = stack[-1]
        for to in rest:
            if to not in seen:
                seen.add(to)
                stack.append((to, iter(following[to])))
                break
        else:
            order.append(block)
            stack.pop()
    return order[::-1]


def dominators(following, order):
    place = {b: i for i, b in enumerate(order)}
    before = {b: [] for b in order}
    for b in order:
        for to in following[b]:
            before[to].append(b)
    parent = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for b in order[1:]:
            new = None
            for p in before[b]:
                if p in parent:
                    if new is None:
                        new = p
                        continue
                    a = p
                    while a != new:
                        while place[a] > place[new]:
                            a = parent[a]
                        while place[new] > place[a]:
                            new = parent[new]
            if parent.get(b) != new:
                parent[b] = new
                changed = True
    return parent, before


def count(code, sources):
    blocks, following = blocks_of(code)
    order = order_of(following)
    parent, before = dominators(following, order)

    def over(a, b):  # a dominates b
        while b != a and parent[b] != b:
            b = parent[b]
        return a == b

    marks = {b: blocks[b][0].mark for b in order if blocks[b][0].mark is not None}
    rare = {b for b in order if any(marks[m] == RARE and over(m, b) for m in marks)}
    changed = True
    while changed:  # and what leads only there
        changed = False
        for b in order:
            if b not in rare and following[b] and all(to in rare for to in following[b]):
                rare.add(b)
                changed = True
    loops = {}  # head -> blocks
    back = set()
    for b in order:
        for to in following[b]:
            if b not in rare and over(to, b):
                back.add((b, to))
                body, stack = loops.setdefault(to, {to}), [b]
                while stack:
                    x = stack.pop()
                    if x not in body:
                        body.add(x)
                        stack.extend(p for p in before[x] if p not in rare)
    tickets = [b for b in order if marks.get(b) == TICKET and b not in rare]
    around = [body for body in loops.values() if any(b in body for b in tickets)]
    if not around:
        sys.exit("sass_count: the loop over tickets is not there")
    main = min(around, key=len)
    head = next(h for h in loops if loops[h] is main)
    weight = {}
    for b in main:
        w = 1.0
        for h, body in loops.items():
            if body is not main and b in body and body < main:
                inner = [marks[m] for m in body if m in marks and
                         not any(m in o and o < body for o in loops.values())]
                w *= sources if SOURCE in inner else max(sources - 1, 1) if FURTHER in inner else 1
                w *= max([1 << m - TIMES for m in inner if TIMES < m < FURTHER], default=1)
        if any(m in main and marks[m] == ONE_WARP and over(m, b) for m in marks):
            w /= 4
        weight[b] = w
    best, way = {}, {}
    for b in order:
        if b not in main or b in rare:
            continue
        cost = sum(x.mark is None for x in blocks[b]) * weight[b]
        come = [(best[p], p) for p in before[b] if p in best and (p, b) not in back]
        if b != head and not come:
            continue
        best[b] = cost + (max(come)[0] if come else 0)
        way[b] = max(come)[1] if come else None
    latches = [b for b, to in back if to == head and b in best]
    b = max(latches, key=lambda x: best[x])
    total, classes, path = best[b], {}, []
    while b is not None:
        path.append(b)
        for x in blocks[b]:
            if x.mark is None:
                classes[kind_of(x.op)] = classes.get(kind_of(x.op), 0) + weight[b]
        b = way[b]
    return total, classes, path[::-1], weight, blocks


def main():
    code = text_of(open(sys.argv[1], "rb").read())
    values = int(sys.argv[3]) if len(sys.argv) > 3 else 32
    total, classes, path, weight, blocks = count(code, int(sys.argv[2]))
    print("total %.1f" % (total / values))
    for name in ("multiply-add", "logic", "memory", "exchange", "control"):
        print("%s %.1f" % (name, classes.get(name, 0) / values))
    if len(sys.argv) > 4:  # where: the path's blocks
        at = {id(b): i for i, b in enumerate(blocks)}
        start = [0]
        for b in blocks:
            start.append(start[-1] + 16 * len(b))
        for b in path:
            print("  %05x %4d x %g" % (start[b], len(blocks[b]), weight[b]))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end as other programs do when nobody reads on
    main()
