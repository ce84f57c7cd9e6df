#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes a tool's manual page from what it says of itself: man.sh TOOL. What its --help lists below "Parts:" has a
# --help of its own. man.sh print-parameters writes the page of settings, nibble(7), from the page in Markdown that this
# program prints. "make update-docs" runs it; tests/check-man.sh compares.
set -u
tool=$1
name=$(basename "$tool")

functions='
function safe(s) {
    gsub(/\\/, "\\e", s)
    gsub(/-/, "\\-", s)
    gsub(/\047/, "\\(aq", s)
    gsub(/\^/, "\\(ha", s)
    gsub(/~/, "\\(ti", s)
    gsub(/`/, "\\(ga", s)
    gsub(/,/, ",\\:", s) # long lists may be broken there
    return s
}
function text(s) {
    s = safe(s)
    print (s ~ /^[.]/) ? "\\&" s : s
}
'

# The lines of a --help, as roff: "usage:", options and words of a list with their text behind two spaces or more,
# text that goes on below, paragraphs.
page="$functions"'
function section(s) {
    if (s != now)
        print ".SH " s
    now = s
    gap = 0
}
/^usage: / {
    if (!part)
        section("SYNOPSIS")
    print ".B " safe(substr($0, 8))
    now = part ? now : "SYNOPSIS"
    next
}
/^$/ { gap = 1; next }
/^Parts:$/ { section("PARTS"); next }
# An entry of a list.
/^  [^ ]/ {
    if (!part && $0 ~ /^  -/)
        section("OPTIONS")
    gap = 0
    line = substr($0, 3)
    at = match(line, /  +/)
    print ".TP"
    print ".B " safe(at ? substr(line, 1, at - 1) : line)
    if (at)
        text(substr(line, at + RLENGTH))
    next
}
/^ / {
    sub(/^ +/, "")
    text($0)
    next
}
/^Exit status: / {
    section("EXIT STATUS")
    sub(/^Exit status: /, "")
    text($0)
    next
}
{
    if (!part && now == "SYNOPSIS")
        section("DESCRIPTION")
    else if (gap || now == "OPTIONS")
        print ".PP"
    gap = 0
    text($0)
}
'

# Paragraphs and tables of docs/parameters.md, as roff.
settings="$functions"'
function plain(s) {
    gsub(/`|\\/, "", s)
    return s
}
/^# / || /^<!--/ || /^[|]---/ || /^[|] Variable / { next }
/^## / {
    if (!tables++)
        print ".SH SETTINGS"
    print ".SS " safe(substr($0, 4))
    next
}
/^[|]/ {
    n = split(substr($0, 3, length($0) - 4), cell, / [|] /)
    print ".TP"
    print ".B " safe(plain(cell[1]))
    meaning = plain(cell[4])
    for (i = 5; i <= n; i++)
        meaning = meaning " | " plain(cell[i])
    text(meaning ".")
    text("Default: " plain(cell[2]) ". Allowed: " plain(cell[3]) ".")
    next
}
/^$/ {
    if (said)
        print ".PP"
    said = 0
    next
}
{
    text(plain($0))
    said = 1
}
'

case $name in
print-parameters)
    folder=$(dirname "$0")/../packages
    printf '.\\" Made from plugin/base/params.def by "make update-docs"; do not edit.\n'
    printf '.TH NIBBLE 7 "" "nibble" "Miscellaneous Information"\n.nh\n.ad l\n'
    printf '.SH NAME\nnibble \\- settings of the NCCL plugin nibble\n.SH SYNOPSIS\n.nf\n'
    sed -n 's/^\([A-Z_]*=[^ ]*\) .*/export \1/p' "$folder/variables"
    printf '.fi\n.SH DESCRIPTION\n'
    "$tool" | awk "$settings" || exit 1
    printf '.SH SEE ALSO\n.BR nibble\\-info (1)\n'
    exit 0
    ;;
nibble-doctor) brief='checks nodes before the first run of a job for causes that keep it uncompressed' ;;
nibble-hang) brief='names the node that holds up a job, from the hang reports of all nodes' ;;
nibble-info) brief='describes a build of nibble and a machine' ;;
nibble-model) brief='predicts the collectives of nibble beside those of NCCL' ;;
nibble-perf) brief='measures codecs, collectives and point-to-point transfers on one machine' ;;
nibble-top) brief='shows what the running processes of a machine send with nibble' ;;
*) echo "man.sh: what is $name for?" >&2; exit 1 ;;
esac
printf '.\\" Made from "%s --help" by "make update-docs"; do not edit.\n' "$name"
printf '.TH %s 1 "" "nibble" "User Commands"\n.nh\n.ad l\n' "$(echo "$name" | tr 'a-z-' 'A-Z-' | sed 's/-/\\-/g')"
printf '.SH NAME\n%s \\- %s\n' "$(echo "$name" | sed 's/-/\\-/g')" "$(echo "$brief" | sed 's/-/\\-/g')"
"$tool" --help | awk "$page" || exit 1
for part in $("$tool" --help | sed -n '/^Parts:$/,/^$/s/^  \([a-z0-9]*\) .*/\1/p'); do
    printf '.SH %s\n' "$(echo "$part" | tr a-z A-Z)"
    "$tool" "$part" --help | awk -v part=1 "$page" || exit 1
done
others=
for other in doctor hang info model perf top; do
    [ "nibble-$other" = "$name" ] || others="$others${others:+,
}.BR nibble\\-$other (1)"
done
printf '.SH SEE ALSO\n%s\n' "$(echo "$others" | sed 's/(1),$/(1),/')"
