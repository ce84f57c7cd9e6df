#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each module of the plugin has a test, which tests/README.md names.
command -v python3 >/dev/null 2>&1 || { echo "SKIP: python3 is not installed"; exit 77; }
srcdir=${NB_SRCDIR:-$(dirname "$0")/..}
exec python3 "$srcdir/tests/modules.py" "$srcdir" check
