#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Everything that can only be answered with a GPU, in one run of less than ten minutes: launching experiments, the
# kernels' bytes and speed, real NCCL, unmodified PyTorch training. Works on a built tree, also one that was built elsewhere:
# it needs neither Autotools nor headers. Goes on after failures; every part has its own time limit.
#
#   gpu-check.sh [options]
#     --build DIR        the built tree (default: the folder above, or build/release in it)
#     --out DIR          where tables and logs go (default: gpu-check-results in the built tree)
#     --parts A,B        only these parts; --list names them
#     --scale PERCENT    of every part's time limit (default 100)
#     --python PROGRAM   the Python that has PyTorch (default: python3)
#     --commit ID        what was built, where git cannot tell
#     --mps              processes share the GPU through MPS, at the same time instead of in turns (nccl, training)
#     --with NAME:SECONDS:COMMAND   one more part, a shell command
#     --list             parts, limits, what they are
#
# A part is a program; its lines "result STATUS NAME: DETAIL" (passed, failed, skipped, measured) become rows, its exit status
# decides about the part: 0 passed, 77 skipped with its line "skipped: WHY", 124 its time was over, else failed.
# In DIR: table.md, results.json, environment.txt, what the parts write (*.json, *.csv) and logs.tar.gz.
# Exit status: 0, 1 when anything failed, 77 when everything was skipped, 2 for wrong usage.
set -u
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)

parts="experiments:60 kernels:15 sanitizer:60 speed:40 ring:30 hazards:80 nccl:130 training:160"
describe()
{
    case $1 in
    experiments) echo "does a kernel launched beside a waiting collective start; fork and join, eager and captured" ;;
    kernels) echo "the kernels give the C codec's bytes: golden vectors and random data" ;;
    sanitizer) echo "the kernels under compute-sanitizer: memory, then races" ;;
    speed) echo "each kernel's speed as a fraction of the device's own copying, 1 MiB to 1 GiB" ;;
    ring) echo "the resident kernel: descriptors through the ring, pieces of 128 KiB to 4 MiB" ;;
    hazards) echo "beside an operation that waits: first launches, frees, compute, ncclCommAbort" ;;
    nccl) echo "real NCCL with 2 and 4 processes, each its own node, on one GPU" ;;
    training) echo "unmodified PyTorch scripts over plain NCCL and over nibble, same seeds" ;;
    *) echo "given with --with" ;;
    esac
}

# ---- the parts, each in a process of its own so that its limit ends all of it -------------------------------

# built PROGRAM: it is there and starts on this machine.
built()
{
    [ -x "$NB_BUILDDIR/$1" ] && return 0
    echo "skipped: $1 is not in the built tree"
    exit 77
}

run_sanitizer()
{
    tool=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) ||
        { echo "skipped: no compute-sanitizer"; exit 77; }
    built tests/gpu/gpu_kernels
    [ "$NB_GPU" != none ] || { echo "skipped: no GPU"; exit 77; }
    status=0
    for check in memcheck racecheck; do
        "$tool" --tool $check --error-exitcode 9 "$NB_BUILDDIR/tests/gpu/gpu_kernels" 4 2>&1
        s=$?
        case $s in
        0) echo "result passed $check: no error" ;;
        77) exit 77 ;;
        9) echo "result failed $check: errors reported"; status=1 ;;
        *) echo "result failed $check: status $s"; status=1 ;;
        esac
    done
    exit $status
}

run_speed()
{
    built tests/gpu/kernel_speed
    # Rows as they come, so that a limit leaves what was measured. Encoding, decoding and sums have a bar from 64 MiB on.
    { "$NB_BUILDDIR/tests/gpu/kernel_speed" --json; printf '\nstatus %s\n' "$?"; } | tee "$NB_OUT/speed.part" |
        awk '
            /^status/ {
                if ($2) exit $2
                if (!n) { print "result failed speed: nothing was measured"; bad = 1 }
                exit bad
            }
            /^skipped:/ { print; next }
            /"of_copy"/ {
                print
                fflush()
                split($0, part, "\"")
                kernel = part[4]
                mib = $0; sub(/.*"mib": /, "", mib); mib += 0
                rate = $0; sub(/.*"gb_per_s": /, "", rate); rate += 0
                share = $0; sub(/.*"of_copy": /, "", share); share += 0
                if (mib < 64 || kernel !~ /^(encode|decode)/) next
                n++
                if (share < 0.85) bad = 1
                printf "result %s %s, %d MiB: %.1f %% of copying (%.1f GB/s), 85 wanted\n", \
                    share < 0.85 ? "failed" : "passed", kernel, mib, 100 * share, rate
                fflush()
            }'
    s=$?
    sed '/^status /d' "$NB_OUT/speed.part" >"$NB_OUT/speed.json"
    rm -f "$NB_OUT/speed.part"
    grep -q '"of_copy"' "$NB_OUT/speed.json" || rm -f "$NB_OUT/speed.json"
    exit $s
}

run_ring()
{
    built tests/gpu/ring_speed
    "$NB_BUILDDIR/tests/gpu/ring_speed" --json >"$NB_OUT/ring.json"
    s=$?
    [ $s != 77 ] || { cat "$NB_OUT/ring.json"; rm -f "$NB_OUT/ring.json"; exit 77; }
    # What the plugin does: 34 blocks of 132 multiprocessors, units of 128 KiB, many of them in the ring.
    awk -F '"' '/"what"/ {
        line = $0
        sub(/.*"kib": /, "", line)
        split(line, at, /[,:}] *("[a-z_]*": *)?/)
        if (at[1] == 128 && $8 == "device") print "result measured " $4 ", depth " at[3] ": " at[4] " GB/s, " at[5] " us each"
    }' "$NB_OUT/ring.json"
    [ $s = 0 ] || tail -n 1 "$NB_OUT/ring.json"
    exit $s
}

# MPS for this part only, with folders of its own (their path must be short); the control process ends with the part.
start_mps()
{
    CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d /tmp/nb-mps.XXXXXX)
    CUDA_MPS_LOG_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY
    export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    trap 'echo quit | timeout 5 nvidia-cuda-mps-control >/dev/null 2>&1; rm -rf "$CUDA_MPS_PIPE_DIRECTORY"' EXIT
    trap 'exit 124' TERM INT
    if timeout 10 nvidia-cuda-mps-control -d; then
        echo "result measured processes: share the GPU through MPS"
    else
        echo "result skipped processes: MPS could not be started, they take turns"
        unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
        trap - EXIT
    fi
}

run_part()
{
    case $1 in
    experiments) built tools/gpu-check/launches; exec "$NB_BUILDDIR/tools/gpu-check/launches" ;;
    kernels) built tests/gpu/gpu_kernels; exec "$NB_BUILDDIR/tests/gpu/gpu_kernels" ;;
    sanitizer) run_sanitizer ;;
    speed) run_speed ;;
    ring) run_ring ;;
    hazards | nccl | training)
        command -v "$NB_PYTHON" >/dev/null 2>&1 || { echo "skipped: no $NB_PYTHON"; exit 77; }
        [ -f "$here/$1_check.py" ] || { echo "skipped: $1_check.py is not there"; exit 77; }
        [ -z "$NB_MPS" ] || [ "$1" = hazards ] || start_mps
        "$NB_PYTHON" "$here/$1_check.py" --plugin "$NB_PLUGIN" --out "$NB_OUT" --limit "$2"
        exit $?
        ;;
    esac
}

# gpu-check.sh --run PART SECONDS
if [ "${1-}" = --run ]; then
    run_part "$2" "$3"
    exit 2
fi

# ---- options --------------------------------------------------------------------------------------------

usage()
{
    sed -n '/^#   gpu-check.sh/,/^#     --list/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

build=
out=
chosen=
scale=100
python=python3
commit=
mps=
more=
while [ $# -gt 0 ]; do
    case $1 in
    --list)
        for part in $parts; do
            printf '%-12s %4s s  %s\n' "${part%:*}" "${part#*:}" "$(describe "${part%:*}")"
        done
        exit 0
        ;;
    --mps) mps=1 ;;
    --build | --out | --parts | --scale | --python | --commit | --with)
        [ $# -ge 2 ] || usage
        case $1 in
        --build) build=$2 ;;
        --out) out=$2 ;;
        --parts) chosen=$2 ;;
        --scale) scale=$2 ;;
        --python) python=$2 ;;
        --commit) commit=$2 ;;
        --with) more="$more
$2" ;;
        esac
        shift
        ;;
    *) usage ;;
    esac
    shift
done
case $scale in *[!0-9]* | "" | 0*) usage ;; esac

if [ -z "$build" ]; then
    build=$top
    [ -d "$build/.libs" ] || build=$top/build/release
fi
[ -d "$build" ] || { echo "gpu-check: no built tree in $build; see --build" >&2; exit 2; }
build=$(cd "$build" && pwd)
out=${out:-$build/gpu-check-results}
mkdir -p "$out/logs" || exit 2
out=$(cd "$out" && pwd)
rm -f "$out/logs/"*.log "$out/rows" "$out/parts" "$out/table.md" "$out/results.json"
: >"$out/rows"
: >"$out/parts"

# ---- where ------------------------------------------------------------------------------------------------

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
gpu=${gpu:-none}
driver=${driver:-none}
[ -n "$commit" ] || commit=$(git -C "$top" describe --always --dirty --abbrev=12 2>/dev/null)
commit=${commit:-unknown}
date=$(date -u +%Y-%m-%dT%H:%M:%SZ)
host="$(uname -m), $(nproc 2>/dev/null) CPUs, $(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)"
{
    echo "date $date"
    echo "commit $commit"
    echo "gpu $gpu"
    echo "driver $driver"
    echo "host $host, $(uname -r)"
    command -v nvcc >/dev/null 2>&1 && nvcc --version | sed -n 's/^.*release/nvcc/p'
    "$python" -c '
import sys
print("python", sys.version.split()[0])
import torch
print("torch", torch.__version__, "cuda", torch.version.cuda, "nccl", torch.cuda.nccl.version() if torch.version.cuda else None)' 2>&1 |
        tail -n 4
    nvidia-smi 2>/dev/null
} >"$out/environment.txt"

NB_SRCDIR=$top
NB_BUILDDIR=$build
NB_PLUGIN=$build/.libs/libnccl-net-nibble.so
NB_OUT=$out
NB_PYTHON=$python
NB_GPU=$gpu
NB_MPS=$mps
PYTHONDONTWRITEBYTECODE=1
export NB_SRCDIR NB_BUILDDIR NB_PLUGIN NB_OUT NB_PYTHON NB_GPU NB_MPS PYTHONDONTWRITEBYTECODE
# A caller's settings must not decide what is checked.
for name in $(env | sed -n 's/^\(NIBBLE_[A-Za-z0-9_]*\)=.*/\1/p; s/^\(NCCL_[A-Za-z0-9_]*\)=.*/\1/p'); do
    unset "$name"
done
unset CUDA_DEVICE_MAX_CONNECTIONS CUDA_LAUNCH_BLOCKING

clean() { printf '%s' "$1" | tr '\t\n' '  '; }

# part NAME SECONDS COMMAND...: one part with its limit; its rows and its verdict.
part()
{
    name=$1
    limit=$(($2 * scale / 100))
    [ "$limit" -gt 0 ] || limit=1
    shift 2
    log=$out/logs/$name.log
    echo "== $name: $(describe "$name")"
    begun=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$log" 2>&1 </dev/null
    status=$?
    seconds=$(($(date +%s) - begun))
    awk -v part="$name" '/^result (passed|failed|skipped|measured) ./ {
        status = $2
        line = substr($0, length(status) + 9)
        gsub(/\t/, " ", line)
        at = index(line, ": ")
        if (!at) { line = line ": "; at = length(line) - 1 }
        printf "%s\t%s\t%s\t%s\n", part, status, substr(line, 1, at - 1), substr(line, at + 2)
    }' "$log" >>"$out/rows"
    failures=$(grep -c '^result failed ' "$log")
    case $status in
    0)
        verdict=passed
        why=$(tail -n 1 "$log")
        [ "$failures" = 0 ] || { verdict=failed; why="$failures of its checks failed"; }
        ;;
    77) verdict=skipped why=$(sed -n 's/^.*skipped: //p' "$log" | head -n 1) ;;
    124 | 137) verdict=failed why="not done within its $limit s" ;;
    *)
        verdict=failed
        why="status $status: $(grep -v '^result passed' "$log" | tail -n 1)"
        [ $status != 1 ] || [ "$failures" = 0 ] || why="$failures of its checks failed"
        ;;
    esac
    [ "$verdict" = skipped ] && why=${why:-without a reason}
    found=$(sed -n 's/^verdict //p' "$log" | tail -n 1)
    [ -z "$found" ] || why=$found
    why=$(clean "$why" | cut -c1-300)
    printf '%s\t%s\t%s\t%s\n' "$name" "$verdict" "$seconds" "$why" >>"$out/parts"
    printf '   %s after %s s: %s\n' "$verdict" "$seconds" "$why"
}

wanted()
{
    [ -z "$chosen" ] && return 0
    case ,$chosen, in *,"$1",*) return 0 ;; esac
    return 1
}

for p in $(echo "$chosen" | tr ',' ' '); do
    case " $parts " in *" $p:"*) ;; *) [ "$p" = none ] || { echo "gpu-check: there is no part $p" >&2; exit 2; } ;; esac
done
begin=$(date +%s)
for p in $parts; do
    wanted "${p%:*}" || continue
    limit=$((${p#*:} * scale / 100))
    part "${p%:*}" "${p#*:}" sh "$0" --run "${p%:*}" "$limit"
done
# One part a line, since its command may have blanks.
echo "$more" >"$out/logs/more"
while IFS= read -r p; do
    [ -n "$p" ] || continue
    rest=${p#*:}
    part "${p%%:*}" "${rest%%:*}" sh -c "${rest#*:}"
done <"$out/logs/more"
rm -f "$out/logs/more"
seconds=$(($(date +%s) - begin))

# ---- what came out ----------------------------------------------------------------------------------------

count() { awk -F '\t' -v s="$1" '$2 == s { n++ } END { print n + 0 }' "$out/parts"; }
passed=$(count passed)
failed=$(count failed)
skipped=$(count skipped)

awk -F '\t' -v date="$date" -v commit="$commit" -v gpu="$gpu" -v driver="$driver" -v host="$host" -v seconds="$seconds" '
    function text(s) { gsub(/[\\"]/, "\\\\&", s); gsub(/[[:cntrl:]]/, " ", s); return "\"" s "\"" }
    BEGIN {
        printf "{\"date\": %s, \"commit\": %s, \"gpu\": %s, \"driver\": %s, \"host\": %s, \"seconds\": %d,\n \"parts\": [",
            text(date), text(commit), text(gpu), text(driver), text(host), seconds
    }
    FILENAME ~ /parts$/ {
        printf "%s\n  {\"part\": %s, \"status\": %s, \"seconds\": %d, \"why\": %s}", np++ ? "," : "", text($1), text($2), $3, text($4)
        next
    }
    {
        if (!nr++) printf "],\n \"checks\": ["
        printf "%s\n  {\"part\": %s, \"status\": %s, \"name\": %s, \"detail\": %s}", (nr > 1 ? "," : ""), text($1), text($2), text($3), text($4)
    }
    END { if (!nr) printf "],\n \"checks\": ["; print "]}" }' "$out/parts" "$out/rows" >"$out/results.json"

{
    echo "# gpu-check: $gpu, driver $driver"
    echo
    echo "$date, commit $commit, $host; $seconds s: $passed passed, $failed failed, $skipped skipped."
    echo
    echo "| part | | seconds | |"
    echo "|---|---|---|---|"
    awk -F '\t' '{ gsub(/\|/, "/"); printf "| %s | %s | %d | %s |\n", $1, $2, $3, $4 }' "$out/parts"
    if [ -s "$out/rows" ]; then
        echo
        echo "| part | check | | |"
        echo "|---|---|---|---|"
        awk -F '\t' '{ gsub(/\|/, "/"); printf "| %s | %s | %s | %s |\n", $1, $3, $2, $4 }' "$out/rows"
    fi
} >"$out/table.md"
rm -f "$out/rows" "$out/parts"
(cd "$out" && tar -czf logs.tar.gz logs) 2>/dev/null || :

echo "$out/table.md has the table, results.json the same"
echo "gpu-check: $passed parts passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] || exit 1
[ "$passed" != 0 ] || exit 77
exit 0
