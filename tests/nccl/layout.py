#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""layout.py LIBRARY NAME...: where the members of NCCL's structs are, by the library's own debug information.

A NAME is STRUCT.MEMBER, STRUCT.MEMBER|MEMBER where versions of NCCL differ, STRUCT.MEMBER:bits for a bit
field, or STRUCT for a size. Each line of the output is a NAME, the member's first byte and size. A bit
field's line has the first byte, and the first and the number of bits. The line of a STRUCT has its size. gdb
reads the library.
"""
import re
import subprocess
import sys


def main():
    library, names = sys.argv[1], sys.argv[2:]
    bits = sorted({n.split('.')[0] for n in names if n.endswith(':bits')})
    commands = []
    for name in names:
        struct, _, members = name.partition('.')
        for member in [] if name.endswith(':bits') else members.split('|'):
            of = f'((struct {struct} *)0)->{member}'
            what = f'(long)&{of}, sizeof({of})' if member else f'sizeof(struct {struct}), 0L'
            commands += ['-ex', f'printf "= {name} %ld %ld\\n", {what}']
    for struct in bits:
        commands += ['-ex', f'printf "# {struct}\\n"', '-ex', f'ptype /o struct {struct}']
    text = subprocess.run(['gdb', '-nx', '-batch', '-ex', 'set width 0', *commands, library], check=True,
                          capture_output=True, text=True).stdout
    struct, lines = '', {}
    for line in text.splitlines():
        if line.startswith('= '):
            name, value = line[2:].split(' ', 1)
            lines[name] = value
        elif line.startswith('# '):
            struct = line[2:]
        field = re.match(r'/\*\s+(\d+): (\d+)\s+\|\s+\d+ \*/.* (\w+) : (\d+);', line)
        if field and f'{struct}.{field[3]}:bits' in names:
            lines[f'{struct}.{field[3]}:bits'] = f'{field[1]} {field[2]} {field[4]}'
    missing = [n for n in names if n not in lines]
    if missing:
        sys.exit(f'{library} has no debug information for {" ".join(missing)}')
    for name in names:
        print(name, lines[name])


main()
