# SPDX-License-Identifier: Apache-2.0
# Samples of bench.sh (comma-separated, see its first line) to tables of medians and ratios.
BEGIN { FS = "," }
NR == 1 { next }
{
    key = $1 SUBSEP $2 SUBSEP $3 SUBSEP $4 SUBSEP $5 SUBSEP $6 SUBSEP $7 SUBSEP $8 SUBSEP $9 SUBSEP $10
    if (!(key in count)) order[++keys] = key
    count[key]++
    seconds[key, count[key]] = $12
    ratio[key] = $13
    cpu[key, count[key]] = $14
    busy[key, count[key]] = $15
    link[key, count[key]] = $16
    # By what is compared with what: tool, nodes, rate, op, type and bytes of a set.
    group = $1 SUBSEP $2 SUBSEP $4 SUBSEP $5 SUBSEP $6 SUBSEP $7 SUBSEP $8
    if (!(group in keyof)) keyof[group] = key
}
function median(table, key,    n, i, j, v, sorted) {
    n = count[key]
    for (i = 1; i <= n; i++) {
        v = table[key, i]
        if (v == "") return ""
        for (j = i - 1; j > 0 && sorted[j] > v + 0; j--) sorted[j + 1] = sorted[j]
        sorted[j + 1] = v + 0
    }
    return n % 2 ? sorted[(n + 1) / 2] : (sorted[n / 2] + sorted[n / 2 + 1]) / 2
}
function other(set, tool,    group) {
    group = set SUBSEP tool SUBSEP f[4] SUBSEP f[5] SUBSEP f[6] SUBSEP f[7] SUBSEP f[8]
    return group in keyof ? median(seconds, keyof[group]) : ""
}
function plain_of(tool) { return tool == "100" ? "plain100" : "plain" }
function keyof_plain() {
    return keyof["changed" SUBSEP plain_of(f[2]) SUBSEP f[4] SUBSEP f[5] SUBSEP f[6] SUBSEP f[7] SUBSEP f[8]]
}
# The same broadcasts by another tool: new values beside new values, others beside 3 % changed.
function beside(tool) {
    return f[1] SUBSEP tool SUBSEP f[3] SUBSEP f[4] SUBSEP f[5] SUBSEP \
        (f[6] == 100 && tool == "raw" ? 100 : 3) SUBSEP f[7] SUBSEP f[8] SUBSEP f[9] SUBSEP f[10]
}
function cell(width, digits, value) {
    return value == "" ? sprintf(" %" width "s", "-") : sprintf(" %" width "." digits "f", value)
}
function size(bytes) {
    return bytes >= 1048576 ? bytes / 1048576 "M" : bytes >= 1024 ? bytes / 1024 "K" : bytes
}
# Seconds of the bytes that must pass the busiest link of a node, at its rate.
function ideal(ratio) {
    return f[5] > 0 ? f[8] * (f[4] - 1) / f[4] * (f[6] == "all_reduce" ? 2 : 1) * ratio * 8e-6 / f[5] : ""
}
function quotient(a, b) { return a == "" || b == "" || b == 0 ? "" : a / b }
END {
    for (s = 1; s <= split("main large windows small p2p changed broadcast", sets, " "); s++) {
        header = 0
        for (k = 1; k <= keys; k++) {
            split(order[k], f, SUBSEP)
            if (f[1] != sets[s]) continue
            if (!header++) print_header(f[1])
            key = order[k]
            t = median(seconds, key)
            used = cell(5, 2, median(cpu, key)) cell(5, 2, median(busy, key))
            if (f[1] == "p2p") {
                printf "%-8s %9.1f%s%s\n", f[2], f[8] * 8e-6 / t, used,
                    cell(9, 3, quotient(other("p2p", "iperf3"), t))
                continue
            }
            if (f[1] == "changed") {
                printf "%-8s %9.1f%s%s%s%s\n", f[2], 1e3 * t, used, cell(10, 2, median(link, key) * 1e-6),
                    cell(7, 1, quotient(median(link, keyof_plain()), median(link, key))),
                    cell(9, 2, quotient(other("changed", plain_of(f[2])), t))
                continue
            }
            if (f[1] == "broadcast") {
                printf "%9d %-8s %-8s %5s%% %9.1f%s%s%s%s\n", f[4] - 1, f[3], f[2], f[6], 1e3 * t,
                    cell(10, 2, median(link, key) * 1e-6),
                    cell(7, 1, quotient(median(link, beside("raw")), median(link, key))),
                    cell(7, 2, quotient(median(seconds, beside("raw")), t)),
                    cell(11, 2, quotient(median(seconds, beside("sockets")), t))
                continue
            }
            if (f[1] == "small" && f[2] == "raw") continue
            id = f[2] == "openmpi" ? ideal(1) : ideal(ratio[key])
            printf "%-8s %-10s %2d %-14s %-8s %6s %9s %9.2f%s%s%s%s%s%s\n", f[2], f[3], f[4], f[6], f[7],
                size(f[8]), f[9] == "" ? "-" : f[9] "x" (f[10] + 0 ? size(f[10]) : "NCCL"), 1e3 * t, used,
                cell(6, 3, ratio[key]),
                cell(7, 3, quotient(t, id)),
                cell(6, 2, f[5] > 0 && link[key, 1] != "" ? median(link, key) * 8e-6 / f[5] / t : ""),
                cell(7, 2, quotient(other(f[1] == "windows" ? "main" : f[1], "raw"), t)),
                cell(8, 2, quotient(other(f[1] == "windows" ? "main" : f[1], "openmpi"), t))
        }
    }
}
function print_header(set) {
    if (set == "changed")
        print "\nchanged\n%               ms   cpu  busy    link MB  fewer plain/it"
    else if (set == "broadcast")
        print "\nbroadcast\nreceivers way      sent by  changed      ms    link MB  fewer raw/it sockets/it"
    else if (set == "p2p")
        print "\np2p\ntool        Mbit/s   cpu  busy  /iperf3"
    else
        printf "\n%s\n%-8s %-10s %2s %-14s %-8s %6s %9s %9s %5s %5s %6s %7s %6s %7s %8s\n", set, "tool",
            "schedule", "N", "op", "type", "bytes", "windows", "ms", "cpu", "busy", "wire",
            "/ideal", "link", "raw/it", "mpi/it"
}
