#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes a wheel with the plugin, the tools, the library and its Python module, from a release:   packages/wheel.sh nibble-VERSION.tar.xz [FOLDER]
# or from a built tree:                                                                     packages/wheel.sh --built BUILD-FOLDER [FOLDER]
# Writes it to FOLDER (default: here), and its name to stdout. NB_CONFIGURE, NB_MAINTAINER and NB_URL
# as for deb.sh. Needs gcc, make, binutils, python3.
set -eu

say()
{
    echo "wheel.sh: $*" >&2
    exit 1
}

case ${1:-} in
--built) build=${2:?which build folder?} source= out=${3:-.} ;;
*.tar.xz) build= source=$1 out=${2:-.} ;;
*) say "which release? wheel.sh nibble-VERSION.tar.xz [FOLDER]" ;;
esac
python=${NB_PYTHON:-python3}
out=$(cd "$out" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
unset MAKEFLAGS MFLAGS MAKELEVEL DESTDIR

if [ "$source" ]; then
    mkdir "$tmp/source" "$tmp/build"
    tar -xf "$source" -C "$tmp/source" --strip-components=1
    build=$tmp/build
    # shellcheck disable=SC2086
    (cd "$build" && "$tmp/source/configure" --prefix=/usr ${NB_CONFIGURE---without-cuda} && make -j"$(nproc)") >"$tmp/log" 2>&1 ||
        { tail -n 20 "$tmp/log" >&2; say "the build failed"; }
fi
make -C "$build" install-strip DESTDIR="$tmp/root" prefix=/usr libdir=/usr/lib docdir=/usr/share/doc/nibble-nccl \
    >"$tmp/log" 2>&1 ||
    { tail -n 20 "$tmp/log" >&2; say "make install failed"; }
# One program instead of the tools, which each contain the engine.
make -C "$build" packages/nibble-tools >"$tmp/log" 2>&1 ||
    { tail -n 20 "$tmp/log" >&2; say "make packages/nibble-tools failed"; }
strip -o "$tmp/root/usr/lib/nibble-tools" "$build/packages/nibble-tools"

# The oldest C library that has all symbols with the versions that the linker took: the wheel's tag.
glibc=$(find "$tmp/root/usr/lib" -type f ! -name '*.pc' -exec objdump -T {} + |
    sed -n 's/.*GLIBC_\([0-9][0-9.]*\).*/\1/p' | sort -V | tail -n 1)
[ "$glibc" ] || say "objdump shows no version of the C library"
version=$(sed -n 's/^#define PACKAGE_VERSION "\(.*\)"/\1/p' "$build/config.h")
[ "$version" ] || say "$build/config.h has no version"

"$python" - "$tmp/root/usr" "$out" "$version" "$glibc" "$(dirname "$0")/variables" <<'END' || say "the wheel cannot be written"
import base64
import hashlib
import os
import pathlib
import platform
import sys
import zipfile

root, out, version, glibc = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
# pip knows no tag before glibc 2.5 for x86_64; "major_minor" of what is needed, at least 2.17.
major, minor = max(tuple(map(int, glibc.split(".")[:2])), (2, 17))
tag = f"py3-none-manylinux_{major}_{minor}_{platform.machine()}"
info = f"nibble_nccl-{version}.dist-info"
data = f"nibble_nccl-{version}.data"

MAIN = '''# SPDX-License-Identifier: Apache-2.0
"""Where the plugin of this wheel is: "eval $(python -m nibble_nccl)" sets what NCCL needs to use it."""
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
VARIABLES = @VARIABLES@


def environment():
    """The variables of a job, on all nodes."""
    rest = os.environ.get("LD_LIBRARY_PATH", "")
    return {"LD_LIBRARY_PATH": FOLDER + (":" + rest if rest else ""), **VARIABLES}


def main():
    import shlex

    for name, value in environment().items():
        print(f"export {name}={shlex.quote(value)}")
    return 0
'''
MODULE = '''# SPDX-License-Identifier: Apache-2.0
import signal
import sys

from . import main

signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end as other programs do when nobody reads on
sys.exit(main())
'''
TOOL = '''#!python
# SPDX-License-Identifier: Apache-2.0
import os
import signal
import sys

import nibble_nccl

signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the tool would inherit that
os.execv(os.path.join(nibble_nccl.FOLDER, "nibble-tools"), ["@NAME@", *sys.argv[1:]])
'''
publisher = "".join(f"{field}{os.environ[name]}\n" for field, name in (
    ("Maintainer-email: ", "NB_MAINTAINER"), ("Project-URL: Homepage, ", "NB_URL")) if os.environ.get(name))
METADATA = f'''Metadata-Version: 2.1
Name: nibble-nccl
Version: {version}
Summary: NCCL plugin that sends gradients at 4 bits between nodes: plugin, tools, library and Python module
License: Apache-2.0
License-File: LICENSE
{publisher}Requires-Python: >=3.8
Provides-Extra: codec
Requires-Dist: numpy; extra == "codec"

"eval $(python -m nibble_nccl)" sets the variables that NCCL needs to use the plugin: NCCL_NET_PLUGIN=nibble and
NCCL_COLLNET_ENABLE=1, NCCL_NET=nibble so that a job stops without it, and where it is.
'''
files = {}  # path in the wheel: bytes, executable
for path in sorted((root / "bin").iterdir()):
    files[f"{data}/scripts/{path.name}"] = TOOL.replace("@NAME@", path.name).encode(), True
files["nibble_nccl/nibble-tools"] = (root / "lib/nibble-tools").read_bytes(), True
files["nibble_nccl/libnccl-net-nibble.so"] = (root / "lib/libnccl-net-nibble.so").read_bytes(), True
files["nibble_codec/libnibble-codec.so.0"] = (root / "lib/libnibble-codec.so.0").read_bytes(), True
for path in sorted((root / "share/nibble/python/nibble_codec").iterdir()):
    files[f"nibble_codec/{path.name}"] = path.read_bytes(), False
for path in sorted((root / "share").rglob("*")):
    if path.is_file() and "nibble_codec" not in path.parts:
        files[f"{data}/data/{path.relative_to(root)}"] = path.read_bytes(), False
files[f"{info}/LICENSE"] = (root / "share/doc/nibble-nccl/LICENSE").read_bytes(), False
variables = dict(line.split()[0].split("=") for line in open(sys.argv[5]) if not line.startswith("#"))
files["nibble_nccl/__init__.py"] = MAIN.replace("@VARIABLES@", repr(variables)).encode(), False
files["nibble_nccl/__main__.py"] = MODULE.encode(), False
files[f"{info}/METADATA"] = METADATA.encode(), False
files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: nibble\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), False
record = ""
for name, (content, _) in files.items():
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    record += f"{name},sha256={digest},{len(content)}\n"
files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode(), False
wheel = os.path.join(out, f"nibble_nccl-{version}-{tag}.whl")
with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as z:
    for name, (content, executable) in files.items():
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        z.writestr(entry, content)
print(wheel)
END
