#!/bin/bash
# One of Slurm's commands on a machine on which those who call it are killed and frozen; the name under which it is
# called says which one. The file $CRASH_PLAN/<role>-<number> says what befalls the caller at its role's n-th command:
#   kill-before | kill-after    SIGKILL of the caller before Slurm hears of the command, or once Slurm has done it
#   stop-after S                the caller is frozen once Slurm has done it, for S seconds
#   freeze                      the caller is frozen; Slurm has the command once the file `go` lies beside the plan
#   slow S                      the command takes so long to reach Slurm
#   lose                        Slurm does it, and the reply says that Slurm does not answer
# No file, a file `off` beside the plan, or another caller than an agent and a watcher: nothing happens.
name=${0##*/}
real=$(PATH=${PATH#*:} command -v "$name")
caller=$PPID
mapfile -d '' words <"/proc/$caller/cmdline"
case " ${words[*]} " in
  *" attempt "*) role=agent ;;
  *" watch "*) role=watcher ;;
  *) exec "$real" "$@" ;;
esac
if [ ! -d "$CRASH_PLAN" ] || [ -e "$CRASH_PLAN/../off" ]; then exec "$real" "$@"; fi

exec 8>>"$CRASH_PLAN/$role.lock"
flock 8
number=0
if [ -s "$CRASH_PLAN/$role.count" ]; then read -r number <"$CRASH_PLAN/$role.count"; fi
number=$((number + 1))
echo "$number" >"$CRASH_PLAN/$role.count"
exec 8>&-

what=
if [ -e "$CRASH_PLAN/$role-$number" ]; then read -r what seconds <"$CRASH_PLAN/$role-$number"; fi
if [ -z "$what" ]; then exec "$real" "$@"; fi
printf '%s %s %s %s %s\n' "$EPOCHREALTIME" "$role" "$what" "$number" "$name $*" >>"$CRASH_PLAN/struck"
case $what in
  kill-before)
    kill -KILL "$caller"
    exit 1
    ;;
  kill-after)
    "$real" "$@" >/dev/null 2>&1
    kill -KILL "$caller"
    exit 1
    ;;
  stop-after)
    "$real" "$@"
    code=$?
    (
      sleep "$seconds"
      kill -CONT "$caller"
    ) </dev/null >/dev/null 2>&1 &
    kill -STOP "$caller"
    exit "$code"
    ;;
  freeze)
    kill -STOP "$caller"
    until [ -e "$CRASH_PLAN/go" ]; do sleep 0.1; done
    exec "$real" "$@"
    ;;
  slow)
    # Slurm takes no conditions with a requeue: a late one may hit the next execution, whoever sends it.
    if [ "$role $1" != "watcher requeue" ]; then sleep "$seconds"; fi
    exec "$real" "$@"
    ;;
  lose)
    "$real" "$@" >/dev/null 2>&1
    echo "$name: error: Unable to contact slurm controller (connect failure)" >&2
    exit 1
    ;;
esac
