#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The wheel can be installed without a network; its tools run, its module says where the plugin is and what to set, with which
# nibble-doctor finds and starts it; the Python module has its library beside it.
set -u
srcdir=$(cd "${NB_SRCDIR:-$(dirname "$0")/..}" && pwd)
builddir=$(cd "${NB_BUILDDIR:-.}" && pwd)
python=${NB_PYTHON:-python3}
[ -z "${NB_SANITIZE:-}" ] || { echo "SKIP: built with sanitizers, which Python does not load"; exit 77; }
"$python" -m pip --version >/dev/null 2>&1 || { echo "SKIP: $python has no pip"; exit 77; }
command -v objdump >/dev/null 2>&1 || { echo "SKIP: no objdump"; exit 77; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
failed=0

fail()
{
    echo "FAIL: $*"
    failed=1
}

export NB_URL=https://nibble.invalid NB_MAINTAINER="A Person <person@nibble.invalid>"
wheel=$(NB_PYTHON=$python sh "$srcdir/packages/wheel.sh" --built "$builddir" "$tmp") || { echo "FAIL: wheel.sh"; exit 1; }
if grep -q '^#define NB_OLD_GLIBC 1' "$builddir/config.h"; then
    case $wheel in
    *-manylinux_2_1[7-9]_*.whl | *-manylinux_2_2[0-8]_*.whl) ;;
    *) fail "configured for glibc 2.28, and the wheel is $wheel" ;;
    esac
fi
"$python" -m pip install -q --no-index --no-deps --disable-pip-version-check --root-user-action ignore --target "$tmp/site" "$wheel" \
    >"$tmp/out" 2>&1 || fail "pip: $(cat "$tmp/out")"
cd "$tmp" || exit 1
export PYTHONPATH="$tmp/site"
for tool in ${NB_TOOLS:?run me by make check}; do
    "$tmp/site/bin/${tool##*/}" --version >"$tmp/out" 2>&1 || fail "$tool: $(cat "$tmp/out")"
done
"$python" -c 'import importlib.metadata, sys
found = importlib.metadata.metadata("nibble-nccl")
sys.exit((found["Project-URL"], found["Maintainer-email"], found["License"]) !=
         ("Homepage, " + sys.argv[1], sys.argv[2], "Apache-2.0"))' "$NB_URL" "$NB_MAINTAINER" ||
    fail "the wheel does not say who publishes it"
# Nobody reads on: all end quietly.
for command in "$python -m nibble_nccl" "$tmp/site/bin/nibble-info --no-speed"; do
    $command 2>"$tmp/err" | :
    [ ! -s "$tmp/err" ] || fail "$command | true: $(cat "$tmp/err")"
done
# The engine is there three times: in the plugin, in the library, and in one program for all tools.
[ "$(find "$tmp/site" -type f -size +200k | wc -l)" = 3 ] ||
    fail "more copies of the code: $(find "$tmp/site" -type f -size +200k)"
"$tmp/site/nibble_nccl/nibble-tools" nibble-info --version | grep -q '^nibble-info [0-9]' ||
    fail "nibble-tools with a tool"
for file in share/doc/nibble-nccl/docs/operators.md share/doc/nibble-nccl/docs/glossary.md share/man/man7/nibble.7 nibble_codec/py.typed \
    nibble_nccl-*.dist-info/LICENSE; do
    # shellcheck disable=SC2086
    [ -s "$tmp"/site/$file ] || [ "${file##*.}" = typed ] || fail "no $file"
done
"$python" -m nibble_nccl >"$tmp/set" || fail "python -m nibble_nccl"
for text in "export NCCL_NET_PLUGIN=nibble" "export NCCL_COLLNET_ENABLE=1" "export NCCL_NET=nibble"; do
    grep -qx "$text" "$tmp/set" || fail "python -m nibble_nccl says: $(cat "$tmp/set")"
done
(
    unset NCCL_NET_PLUGIN NCCL_COLLNET_ENABLE NCCL_NET
    eval "$(cat "$tmp/set")"
    NCCL_SOCKET_IFNAME=lo NIBBLE_NET=tcp "$tmp/site/bin/nibble-doctor" --no-speed --python "" --nccl "$tmp/none" >"$tmp/out" 2>&1
)
grep -q '^ok *library .*site/nibble_nccl/libnccl-net-nibble.so.* starts' "$tmp/out" || fail "nibble-doctor says: $(cat "$tmp/out")"
if "$python" -c 'import numpy' 2>/dev/null; then
    (unset NB_CODEC
    "$python" -c 'import nibble_codec, numpy
assert len(nibble_codec.encode(numpy.ones(4096, dtype="f4"))) < 3000') >"$tmp/out" 2>&1 || fail "the Python module: $(cat "$tmp/out")"
else
    echo "without NumPy: the Python module was not loaded"
fi
[ $failed = 0 ] && echo "PASS: $(basename "$wheel")"
exit $failed
