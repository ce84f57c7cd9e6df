#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The hooks for PyTorch, over gloo, and a small run of the example. NB_PYTHON is the interpreter.
set -u
# shellcheck source=tests/python/python.sh
. "$(dirname "$0")/python.sh"
python=${NB_PYTHON:-python3}
"$python" -c 'import torch, numpy, sys; sys.exit(not torch.distributed.is_gloo_available())' 2>/dev/null ||
    { echo "SKIP: $python has no PyTorch with gloo, or no NumPy"; exit 77; }
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
"$python" -W ignore "$srcdir/tests/python/test_torch.py" "$@" || exit 1
"$python" -m nibble_codec.example --nodes 2 --steps 6 --warmup 1 --batch 1 --width 32 --layers 1 --out "$tmp" >"$tmp/log" 2>&1 ||
    { cat "$tmp/log"; echo "FAIL: the example"; exit 1; }
grep -q '^held-out loss: .* exact, .* nibble, .* without feedback$' "$tmp/log" &&
    grep -q 'bits a value' "$tmp/report.txt" &&
    [ "$(grep -c , "$tmp/parameters.csv")" -gt 10 ] || { cat "$tmp/log"; echo "FAIL: what the example writes"; exit 1; }
"$python" -m nibble_codec.example --nodes 2 --steps 6 --warmup 1 --batch 1 --width 32 --layers 1 --seeds 2 >"$tmp/log" 2>&1 &&
    verdict='coding changes the loss by .* +- .* (95 %, 2 seeds), seeds by .*: ' &&
    grep -q "^nibble: $verdict" "$tmp/log" && grep -q "^no feedback: $verdict" "$tmp/log" ||
    { cat "$tmp/log"; echo "FAIL: two seeds"; exit 1; }
"$python" -m nibble_codec.example --help 2>"$tmp/log" | :
[ -s "$tmp/log" ] && { cat "$tmp/log"; echo "FAIL: nobody reads"; exit 1; }
if "$python" -m mypy --version >/dev/null 2>&1; then
    "$python" -m mypy --strict --ignore-missing-imports --cache-dir "$tmp/mypy" "$srcdir/python/nibble_codec" >"$tmp/log" 2>&1 ||
        { cat "$tmp/log"; echo "FAIL: types"; exit 1; }
fi
echo "PASS: the hooks give what a Cluster gives; the example runs"
