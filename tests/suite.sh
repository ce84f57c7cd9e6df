# SPDX-License-Identifier: Apache-2.0
# Begin a test script. It sources this file with NB_SRCDIR set, first of all, or after links_enter where it
# needs hosts (tools/bench/links.sh).
#
# $srcdir, $builddir  the folders of sources and of the build, also in the environment (NB_SRCDIR, NB_BUILDDIR)
# $plugin             the plugin file
# $tmp                an empty folder, which goes with the script
# fail TEXT...        print a failure, and set $failed, the status to end with
# unset_settings      remove nibble's, NCCL's and Slurm's variables from the environment
srcdir=$(cd "$NB_SRCDIR" && pwd) && builddir=$(cd "${NB_BUILDDIR:-.}" && pwd) || exit 1
export NB_SRCDIR="$srcdir" NB_BUILDDIR="$builddir"
plugin=${NB_PLUGIN:-$builddir/.libs/libnccl-net-nibble.so}
failed=0
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

fail()
{
    echo "FAIL: $*"
    failed=1
}

unset_settings()
{
    for name in $(env | sed -n 's/^\(NIBBLE_[A-Z0-9_]*\|NCCL_[A-Z0-9_]*\|SLURM_[A-Z0-9_]*\)=.*/\1/p'); do
        unset "$name"
    done
}
