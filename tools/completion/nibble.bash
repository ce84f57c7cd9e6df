# SPDX-License-Identifier: Apache-2.0
# Completion of nibble's tools for bash: options and parts from --help, settings from nibble-info. Installed under the name of
# each tool.
_nibble()
{
    local tool=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} part= words=
    COMPREPLY=()
    case ${tool##*/} in
    nibble-perf)
        [ "$COMP_CWORD" -gt 1 ] && part=${COMP_WORDS[1]}
        [ "$COMP_CWORD" = 1 ] && words=$("$tool" --help 2>/dev/null | sed -n '/^Parts:$/,/^$/s/^  \([a-z0-9]*\) .*/\1/p')
        ;;
    nibble-info)
        case $word in [nN]*) words=$("$tool" NIBBLE_ 2>/dev/null | sed -n 's/^  \(NIBBLE_[A-Z0-9_]*\) .*/\1/p') ;; esac
        ;;
    esac
    case $word in
    -*) words=$("$tool" ${part:+"$part"} --help 2>/dev/null | grep -oE -- '(^|[ ,])--?[a-z][a-z-]*' | tr -d ' ,') ;;
    esac
    # shellcheck disable=SC2207
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _nibble nibble-doctor nibble-hang nibble-info nibble-model nibble-perf nibble-top
