#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
exec "$(dirname "$0")/fuzz.sh" abi_threads
