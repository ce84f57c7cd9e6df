# SPDX-License-Identifier: Apache-2.0
# Sourced by the tests of the Python module. Sets `srcdir`, and the environment in which Python finds the module
# and the library. Skips under a sanitizer.
srcdir=$(cd "${NB_SRCDIR:-$(dirname "$0")/../..}" && pwd)
if [ -n "${NB_SANITIZE:-}" ]; then
    echo "SKIP: a sanitizer's functions are not in Python"
    exit 77
fi
export PYTHONPATH="$srcdir/python${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
export NB_CODEC="${NB_CODEC:-$(pwd)/.libs/libnibble-codec.so}"
