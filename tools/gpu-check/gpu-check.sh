#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Everything that can only be answered with a GPU, in two visits of less than nine minutes each: launching beside NCCL, the
# kernels' bytes and speed; then real NCCL with all types, and unmodified PyTorch training. Works on a built tree, also one
# that was built elsewhere: it needs neither Autotools nor headers. Goes on after failures; every part has its own time limit.
#
#   gpu-check.sh [first|second] [options]     without a word: the parts of both, in one run
#     --build DIR        the built tree (default: the folder above, or build/release in it)
#     --out DIR          where tables and logs go (default: gpu-check-results in the built tree)
#     --parts A,B        only these parts; --list names them
#     --scale PERCENT    of every part's time limit (default 100)
#     --python PROGRAM   the Python that has PyTorch (default: python3)
#     --commit ID        what was built, where git cannot tell
#     --mps              processes share the GPU through MPS, at the same time instead of in turns (nccl, training)
#     --with NAME:SECONDS:COMMAND   one more part, a shell command
#     --dry              no GPU: the programs run over the model of the driver (what make check builds), the rest over a PyTorch
#                        that does nothing, with stand-ins where results are needed, which say so: to check gpu-check
#     --list             parts, limits, what they are
#
# A part is a program; its lines "result STATUS NAME: DETAIL" (passed, failed, skipped, measured) become rows, its exit status
# decides about the part: 0 passed, 77 skipped with its line "skipped: WHY", 124 its time was over, else failed.
# In DIR, which has no folders: table.md and results.json, renewed with each row, environment.txt, logs.txt (the ends of all
# logs) and the figures of the parts (*.json, *.csv); seven files a visit. What was not reached is in the table, with why.
# Exit status: 0, 1 when anything failed, 77 when everything was skipped, 2 for wrong usage.
set -u
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)

# The ring cannot stop the GPU, and answers first. Then comes what would change the design most.
first="ring:40 experiments:130 hazards:260 kernels:20 speed:60"
second="nccl:200 training:190 mps:80 sanitizer:60"
parts="$first $second"
describe()
{
    case $1 in
    experiments) echo "behind NCCL's launch or before it, beside loads and frees; what the driver makes wait; fork and join" ;;
    kernels) echo "the kernels give the C codec's bytes: golden vectors and random data" ;;
    sanitizer) echo "the kernels under compute-sanitizer: memory, then races" ;;
    speed) echo "each kernel's speed as a fraction of the device's own copying, 1 MiB to 1 GiB" ;;
    ring) echo "the resident kernel: descriptors through the ring, pieces of 128 KiB to 4 MiB" ;;
    hazards) echo "beside an operation that waits: first launches, frees, compute, ncclCommAbort" ;;
    nccl) echo "real NCCL with 2 and 4 processes, each its own node, on one GPU" ;;
    mps) echo "PyTorch's FSDP2 with codecs on the GPU, processes at the same time through MPS" ;;
    training) echo "unmodified PyTorch scripts over plain NCCL and over nibble, same seeds" ;;
    *) echo "given with --with" ;;
    esac
}

# The decision that a check settles: part, pattern of the check's name, decision. The first line that matches
# counts.
decisions()
{
    cat <<'END'
ring	.	depth of the ring, and blocks of the codec kernel
experiments	^one graph, (a mark|captured)	whether a mark behind NCCL's kernel may end an all-reduce's kernel
experiments	^one graph	whether both kernels are launched by one call (NIBBLE_GPU_LAUNCH=together)
experiments	^(before|behind), ended by count	whether two launches may be the fallback, and in which order
experiments	^the operation alone	what one launch costs more than NCCL's
experiments	^codec kernel (behind|before)	whether NIBBLE_GPU_LAUNCH=behind is safe beside loads and frees
experiments	of another thread beside .*capture	which streams are captured (not blocking ones)
experiments	^update of an executable graph	whether one executable graph serves all of NCCL's kernels
experiments	beside .* of another thread	whether a job's waits hold up a launch
experiments	^launches behind a kernel	how many launches a job may have behind an operation whose peer is late
experiments	^(beside a (kernel|load)|another thread loads)	which driver calls the engine may make later
experiments	^(streams|launches of several|a kernel of another|the same)	assumptions A1, A2, A3, A12 of the model
experiments	^launch (per batch|beside)	whether a kernel for each batch of work would do without a resident one
experiments	^forked and joined	whether a fork and a join around NCCL's launch would do
experiments	.	how the codec kernel is launched
hazards	^threads	whether codecs run on the GPU beside threads that load and free, by default
hazards	^abort	the limits after which an aborted codec kernel ends
hazards	overlap|compute|products	blocks of the codec kernel, and what one hardware queue costs
hazards	.	whether codecs run on the GPU under NCCL, by default
kernels	.	whether the GPU's codecs are used at all: their bytes
speed	.	which kernel to make faster, and the rates in docs/gpu.md
nccl	.	which types, buffers and numbers of connections are coded on the GPU
mps	.	whether docs/gpu.md advises against MPS
training	.	whether 4 bits keep the loss: the defaults of NIBBLE_RS, NIBBLE_AR and NIBBLE_AG
sanitizer	.	whether the kernels are released
END
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
    tool=${NB_DRY:+$NB_BUILDDIR/compute-sanitizer}
    [ -n "$tool" ] || tool=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) ||
        { echo "skipped: no compute-sanitizer"; exit 77; }
    built tests/gpu/gpu_kernels
    [ -n "$NB_DRY" ] || [ "$NB_GPU" != none ] || { echo "skipped: no GPU"; exit 77; }
    status=0
    for check in memcheck racecheck; do
        "$tool" --tool $check --error-exitcode 9 "$NB_BUILDDIR/tests/gpu/gpu_kernels" 4 2>&1
        s=$?
        case $s in
        0) echo "result passed $check: no error" ;;
        77) exit 77 ;;
        9) echo "result failed $check: errors reported"; status=1 ;;
        *) echo "result failed $check: ended with status $s"; status=1 ;;
        esac
    done
    exit $status
}

run_speed()
{
    built tests/gpu/kernel_speed
    # Rows as they come, so that a limit leaves what was measured. Encoding, decoding and sums have a bar from 64 MiB on.
    { "$NB_BUILDDIR/tests/gpu/kernel_speed" --json; printf '\nstatus %s\n' "$?"; } | tee "$NB_WORK/speed.part" |
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
    sed '/^status /d' "$NB_WORK/speed.part" >"$NB_WORK/speed.json"
    rm -f "$NB_WORK/speed.part"
    grep -q '"of_copy"' "$NB_WORK/speed.json" || rm -f "$NB_WORK/speed.json"
    exit $s
}

run_ring()
{
    built tests/gpu/ring_speed
    # Rows as they come. What the plugin does: a quarter of the multiprocessors, units of 128 KiB, many of them in the ring.
    { "$NB_BUILDDIR/tests/gpu/ring_speed" --json; printf '\nstatus %s\n' "$?"; } | tee "$NB_WORK/ring.json" | awk -F '"' '
        /^status/ {
            split($0, word, " ")
            if (word[2] == 0 && !n) { print "result failed ring: nothing was measured"; exit 1 }
            if (word[2] != 0 && word[2] != 77) print last
            exit word[2]
        }
        /^skipped:/ { print }
        /[a-z]/ { last = $0 }
        /"what"/ {
            n++
            line = $0
            sub(/.*"kib": /, "", line)
            split(line, at, /[,:}] *("[a-z_]*": *)?/)
            if (at[1] == 128 && $8 == "device") {
                print "result measured " $4 ", depth " at[3] ": " at[4] " GB/s, " at[5] " us each"
                fflush()
            }
        }'
    s=$?
    sed -i '/^status /d' "$NB_WORK/ring.json"
    [ $s != 77 ] || rm -f "$NB_WORK/ring.json"
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

# Training at the same time, first on the CPU's codecs, then on the GPU: under MPS a kernel of one process may stand in the way
# of another's. The daemon is new, and ends with this part.
run_mps()
{
    command -v "$NB_PYTHON" >/dev/null 2>&1 || { echo "skipped: no $NB_PYTHON"; exit 77; }
    "$NB_PYTHON" -c 'import torch' 2>/dev/null || { echo "skipped: no PyTorch"; exit 77; }
    command -v nvidia-cuda-mps-control >/dev/null 2>&1 || { echo "skipped: no nvidia-cuda-mps-control"; exit 77; }
    start_mps
    [ -n "${CUDA_MPS_PIPE_DIRECTORY-}" ] || { echo "skipped: MPS could not be started"; exit 77; }
    "$NB_PYTHON" "$here/training_check.py" --plugin "$NB_PLUGIN" --out "$NB_WORK" --limit "$1" --ways "fsdp2,fsdp2 on the GPU"
    s=$?
    [ ! -f "$NB_WORK/training.json" ] || mv "$NB_WORK/training.json" "$NB_WORK/mps.json"
    rm -f "$NB_WORK/curves.csv"
    exit $s
}

run_part()
{
    if [ -n "$NB_DRY" ]; then
        case $1 in
        nccl | mps | training)
            PATH=$NB_BUILDDIR:$PATH
            PYTHONPATH=$here/dry
            export PATH PYTHONPATH
            ;;
        hazards)
            # All hazards, of one way to launch: the others differ in settings alone.
            PYTHONPATH=$here/dry "$NB_PYTHON" "$here/hazards_check.py" --plugin "$NB_PLUGIN" --out "$NB_WORK" --limit "$2" \
                --modes 'device pointers, behind'
            exit $?
            ;;
        esac
    fi
    case $1 in
    experiments)
        built tools/gpu-check/launches
        if [ -n "$NB_DRY" ]; then
            echo "result skipped one graph: the model of the driver has no graphs of two kernels"
        else # each in a process of its own, since a stop would spoil what follows
            timeout 60 "$NB_BUILDDIR/tools/gpu-check/launches" --together
            CUDA_DEVICE_MAX_CONNECTIONS=1 timeout 60 "$NB_BUILDDIR/tools/gpu-check/launches" --together
        fi
        exec "$NB_BUILDDIR/tools/gpu-check/launches"
        ;;
    kernels) built tests/gpu/gpu_kernels; exec "$NB_BUILDDIR/tests/gpu/gpu_kernels" ;;
    sanitizer) run_sanitizer ;;
    speed) run_speed ;;
    ring) run_ring ;;
    mps) run_mps "$2" ;;
    hazards | nccl | training)
        command -v "$NB_PYTHON" >/dev/null 2>&1 || { echo "skipped: no $NB_PYTHON"; exit 77; }
        [ -f "$here/$1_check.py" ] || { echo "skipped: $1_check.py is not there"; exit 77; }
        [ -z "$NB_MPS" ] || [ "$1" = hazards ] || start_mps
        "$NB_PYTHON" "$here/$1_check.py" --plugin "$NB_PLUGIN" --out "$NB_WORK" --limit "$2"
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
dry=
visit=all
while [ $# -gt 0 ]; do
    case $1 in
    --list)
        for part in $parts; do
            case " $first " in *" $part "*) visit=first ;; *) visit=second ;; esac
            printf '%-12s %4s s  %-6s  %s\n' "${part%:*}" "${part#*:}" $visit "$(describe "${part%:*}")"
        done
        exit 0
        ;;
    --mps) mps=1 ;;
    --dry) dry=1 ;;
    first) visit=first parts=$first ;;
    second) visit=second parts=$second ;;
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
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/nb-gpu-check.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
mkdir "$work/logs"
rm -f "$out/table.md" "$out/results.json" "$out/logs.txt"
for name in rows now parts plan; do
    : >"$work/$name"
done
decisions >"$work/decisions"
if [ -n "$dry" ]; then
    sh "$here/dry.sh" "$work/dry" "$build" || exit 2
    build=$work/dry
fi

# ---- where ------------------------------------------------------------------------------------------------

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
gpu=${gpu:-none}
[ -z "$dry" ] || gpu="none (a dry run: nothing below was measured)"
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
    [ -n "$dry" ] || "$python" -c '
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
NB_WORK=$work
NB_DRY=$dry
NB_PYTHON=$python
NB_GPU=$gpu
NB_MPS=$mps
PYTHONDONTWRITEBYTECODE=1
export NB_SRCDIR NB_BUILDDIR NB_PLUGIN NB_WORK NB_DRY NB_PYTHON NB_GPU NB_MPS PYTHONDONTWRITEBYTECODE
# A caller's settings must not decide what is checked.
for name in $(env | sed -n 's/^\(NIBBLE_[A-Za-z0-9_]*\)=.*/\1/p; s/^\(NCCL_[A-Za-z0-9_]*\)=.*/\1/p'); do
    unset "$name"
done
unset CUDA_DEVICE_MAX_CONNECTIONS CUDA_LAUNCH_BLOCKING
# Below every limit here: a hang comes back with its cause.
NIBBLE_GPU_TIMEOUT=8
export NIBBLE_GPU_TIMEOUT

clean() { printf '%s' "$1" | tr '\t\n' '  '; }

# ---- what came out, written anew with each row, so that what was measured is there whenever this is ended -----

counts()
{
    awk -F '\t' '{ n[$2]++ } END { printf "%d passed, %d failed, %d skipped", n["passed"], n["failed"], n["skipped"] }' "$work/parts"
}

count() { awk -F '\t' -v s="$1" '$2 == s { n++ } END { print n + 0 }' "$work/parts"; }

# write STATE WHY: the part under way is in state STATE; those behind it in the plan were not reached, for WHY.
write()
{
    awk -F '\t' -v state="$1" -v why="$2" -v at="${name-}" -v s="$(($(date +%s) - ${begun:-0}))" '
        FILENAME ~ /parts$/ { print; done[$1] = 1; next }
        done[$1] { next }
        $1 == at && state != "" { printf "%s\t%s\t%d\t%s\n", $1, state, s, why; next }
        { printf "%s\tnot reached\t0\t%s\n", $1, state == "" ? why : at " was " state }
        ' "$work/parts" "$work/plan" >"$work/all"
    seconds=$(($(date +%s) - begin))
    {
        echo "# gpu-check: $gpu, driver $driver"
        echo
        echo "$date, commit $commit, $host; visit: $visit; $seconds s: $(counts)."
        echo
        echo "| part | | seconds | |"
        echo "|---|---|---|---|"
        awk -F '\t' '{ gsub(/\|/, "/"); printf "| %s | %s | %d | %s |\n", $1, $2, $3, $4 }' "$work/all"
        if [ -s "$work/rows" ] || [ -s "$work/now" ]; then
            echo
            echo "| part | check | | | settles |"
            echo "|---|---|---|---|---|"
            awk -F '\t' '
                FILENAME ~ /decisions$/ { part[++n] = $1; pattern[n] = $2; decision[n] = $3; next }
                {
                    gsub(/\|/, "/")
                    for (i = 1; i <= n && !(part[i] == $1 && $3 ~ pattern[i]); i++) continue
                    printf "| %s | %s | %s | %s | %s |\n", $1, $3, $2, $4, decision[i]
                }' "$work/decisions" "$work/rows" "$work/now"
        fi
    } >"$out/table.md.new"
    mv "$out/table.md.new" "$out/table.md"
    awk -F '\t' -v date="$date" -v commit="$commit" -v gpu="$gpu" -v driver="$driver" -v host="$host" -v seconds="$seconds" '
        function text(s) { gsub(/[\\"]/, "\\\\&", s); gsub(/[[:cntrl:]]/, " ", s); return "\"" s "\"" }
        BEGIN {
            printf "{\"date\": %s, \"commit\": %s, \"gpu\": %s, \"driver\": %s, \"host\": %s, \"seconds\": %d,\n \"parts\": [",
                text(date), text(commit), text(gpu), text(driver), text(host), seconds
        }
        FILENAME ~ /all$/ {
            printf "%s\n  {\"part\": %s, \"status\": %s, \"seconds\": %d, \"why\": %s}", np++ ? "," : "", text($1), text($2), $3, text($4)
            next
        }
        {
            if (!nr++) printf "],\n \"checks\": ["
            printf "%s\n  {\"part\": %s, \"status\": %s, \"name\": %s, \"detail\": %s}", (nr > 1 ? "," : ""), text($1), text($2), text($3), text($4)
        }
        END { if (!nr) printf "],\n \"checks\": ["; print "]}" }' "$work/all" "$work/rows" "$work/now" >"$out/results.json.new"
    mv "$out/results.json.new" "$out/results.json"
}

# What the part has written besides: its figures, and the ends of its logs.
keep()
{
    [ ! -s "$work/speed.part" ] || mv "$work/speed.part" "$work/speed.json" # cut off
    for file in "$work"/*.json "$work"/*.csv; do
        [ ! -f "$file" ] || mv "$file" "$out/"
    done
    find "$work/logs" -type f | sort | while IFS= read -r file; do
        printf '\n==== %s: %s bytes\n' "${file#"$work"/logs/}" "$(wc -c <"$file")"
        tail -c 6000 "$file"
    done >>"$out/logs.txt"
    rm -rf "$work/logs"
    mkdir "$work/logs"
}

# rows: those of the part under way, from its log.
rows()
{
    awk -v part="$name" '/^result (passed|failed|skipped|measured) ./ {
        status = $2
        line = substr($0, length(status) + 9)
        gsub(/\t/, " ", line)
        at = index(line, ": ")
        if (!at) { line = line ": "; at = length(line) - 1 }
        printf "%s\t%s\t%s\t%s\n", part, status, substr(line, 1, at - 1), substr(line, at + 2)
    }' "$log" >"$work/now"
}

running=
ended()
{
    [ -z "$running" ] || kill "$running" 2>/dev/null
    [ ! -f "${log-}" ] || rows
    write "ended by a signal" "gpu-check was ended by a signal"
    keep
    exit 1
}
trap ended TERM INT HUP

# part NAME SECONDS COMMAND...: one part with its limit; its rows and its verdict.
part()
{
    name=$1
    limit=$(($2 * scale / 100))
    [ "$limit" -gt 0 ] || limit=1
    shift 2
    log=$work/logs/$name.log
    echo "== $name: $(describe "$name")"
    begun=$(date +%s)
    : >"$log"
    write "under way" "not done when this was written; its limit is $limit s"
    timeout -k 5 "$limit" "$@" >"$log" 2>&1 </dev/null &
    running=$!
    size=0
    pause=0.02
    while kill -0 $running 2>/dev/null; do
        sleep $pause
        case $pause in 0.02) pause=0.05 ;; 0.05) pause=0.1 ;; *) pause=0.2 ;; esac
        new=$(wc -c <"$log")
        [ "$new" != "$size" ] || continue
        size=$new
        rows
        write "under way" "not done when this was written; its limit is $limit s"
    done
    status=0
    wait $running || status=$?
    running=
    seconds=$(($(date +%s) - begun))
    rows
    cat "$work/now" >>"$work/rows"
    : >"$work/now"
    failures=$(grep -c '^result failed ' "$log")
    case $status in
    0)
        verdict=passed
        why=$(tail -n 1 "$log")
        [ "$failures" = 0 ] || { verdict=failed; why="$failures of its checks failed"; }
        ;;
    77) verdict=skipped why=$(sed -n 's/^.*skipped: //p' "$log" | head -n 1) ;;
    124 | 137) verdict=failed why="not done within its $limit s; it said last: $(tail -n 1 "$log")" ;;
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
    printf '%s\t%s\t%s\t%s\n' "$name" "$verdict" "$seconds" "$why" >>"$work/parts"
    printf '   %s after %s s: %s\n' "$verdict" "$seconds" "$why"
    keep
    write "" "$name was done when this was written"
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
    wanted "${p%:*}" && echo "${p%:*}"
done >"$work/plan"
# One part a line, since its command may have blanks.
echo "$more" | sed '/^$/d' >"$work/more"
sed 's/:.*//' "$work/more" >>"$work/plan"
for p in $parts; do
    wanted "${p%:*}" || continue
    part "${p%:*}" "${p#*:}" sh "$0" --run "${p%:*}" $((${p#*:} * scale / 100))
done
while IFS= read -r p; do
    rest=${p#*:}
    part "${p%%:*}" "${rest%%:*}" sh -c "${rest#*:}"
done <"$work/more"
write "" "not asked for"

passed=$(count passed)
failed=$(count failed)
skipped=$(count skipped)
echo "$out/table.md has the table, results.json the same"
echo "gpu-check: $passed parts passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] || exit 1
[ "$passed" != 0 ] || exit 77
exit 0
