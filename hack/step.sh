#!/usr/bin/env bash
# Runs one step of a longer run and says how long it took, failed or not.
#
#   hack/step.sh NAME COMMAND...
#
# With STEP_LOG set, a line goes there as well.
set -uo pipefail
name=$1
shift
start=$(date +%s%N)
printf '\n── %s\n' "$name"
"$@" </dev/null
code=$?
ms=$((($(date +%s%N) - start) / 1000000))
took=$(printf '%dm%02d.%01ds' $((ms / 60000)) $((ms / 1000 % 60)) $((ms / 100 % 10)))
line="took $took: $name"
[ $code -eq 0 ] || line+=" (failed, exit code $code)"
printf '%s\n' "$line"
[ -z "${STEP_LOG:-}" ] || printf '%s\n' "$line" >>"$STEP_LOG"
exit $code
