#!/bin/bash
# One launch of slurmtrain run gpt-20261129-1700-1a2b3c: 1 node with 1 rank each, launcher srun.
# The agent starts it, as often as needed; job.sbatch does when the agent cannot run; you may, inside an allocation.
# It ends in `exec srun`, so that its process and its exit code are srun's.
# shellcheck disable=SC2016  # what stands in single quotes is meant as it is
set +eu # a submitting shell may have exported its SHELLOPTS

ST_RUN_DIR=/scratch/ada/slurmtrain/runs/gpt-20261129-1700-1a2b3c
: "${SLURM_JOB_ID:?start this inside a Slurm allocation of the same shape}"
cd -- /home/ada/gpt || exit 1

# The agent runs without these; the training gets them back as they were.
for st_name in LD_LIBRARY_PATH LD_PRELOAD LD_AUDIT; do
  st_saved="SLURMTRAIN_SAVED_$st_name"
  if [ -n "${!st_saved+x}" ]; then
    export "$st_name=${!st_saved}"
    unset "$st_saved"
  fi
done

# Where the ranks meet: the first node of the job, and a port of its own for each launch, so that a straggler of the
# launch before cannot join.
MASTER_ADDR=${SLURMTRAIN_MASTER_ADDR:-$(scontrol show hostnames "${SLURM_JOB_NODELIST:-}" 2>/dev/null | head -n 1)}
MASTER_ADDR=${MASTER_ADDR:-${SLURMD_NODENAME:-$(hostname)}}
if ! getent hosts "$MASTER_ADDR" >/dev/null; then # a node's name in Slurm need not be its name on the network
  st_node_addr=$(scontrol -o show node "$MASTER_ADDR" 2>/dev/null | sed -n 's/.* NodeAddr=\([^ ]*\) .*/\1/p')
  MASTER_ADDR=${st_node_addr:-$MASTER_ADDR}
fi
st_restart=${SLURM_RESTART_COUNT:-0}
st_launch=${SLURMTRAIN_LAUNCH:-0}
MASTER_PORT=${SLURMTRAIN_MASTER_PORT:-$((20000 + (SLURM_JOB_ID * 131 + st_restart * 7 + st_launch) % 12000))}
export MASTER_ADDR MASTER_PORT

export SLURMTRAIN_RUN_ID=gpt-20261129-1700-1a2b3c SLURMTRAIN_RUN_DIR="$ST_RUN_DIR"
st_checkpoint_dir=/scratch/ada/slurmtrain/runs/gpt-20261129-1700-1a2b3c/checkpoints
export SLURMTRAIN_CHECKPOINT_DIR="${SLURMTRAIN_CHECKPOINT_DIR:-$st_checkpoint_dir}"
export SLURMTRAIN_DONE_FILE="${SLURMTRAIN_DONE_FILE:-$ST_RUN_DIR/done}"
export SLURMTRAIN_STOP_FILE="${SLURMTRAIN_STOP_FILE:-$ST_RUN_DIR/stop}"
export SLURM_EXPORT_ENV=ALL # sbatch --export may have narrowed what srun hands on
export PYTHONUNBUFFERED=1   # lines appear when they are printed, also those just before a crash
export PYTHONFAULTHANDLER=1 # a crash in native code leaves a Python stack in the log

# torch's flight recorder keeps the last collectives of each rank and writes them when one times out; the scene reads
# them. Since torch 2.9 its variables have other names, and it warns in each rank of an old one that is set. Which torch
# it is the Python of the command tells, or the one in the command's first line; where it has none, nobody else is asked.
if [ -n "${SLURMTRAIN_LAUNCH_DIR:-}" ]; then
  st_torch=''
  st_own=yes
  for st_python in python python python3; do
    if [[ ${st_python##*/} != python* ]]; then
      st_line=
      { IFS= read -r -n 500 st_line <"$(type -P -- "$st_python")"; } 2>/dev/null
      [[ $st_line =~ ^'#!'[[:space:]]*(/[^[:space:]]*/env[[:space:]]+)?([^[:space:]]*python[^[:space:]/]*)([[:space:]]|$) ]] || { st_own=''; continue; }
      st_python=${BASH_REMATCH[2]}
    fi
    st_torch=$(timeout 10 "$st_python" -c '
import os, sys
for folder in sys.path:
    if os.path.isdir(folder):
        for name in os.listdir(folder):
            if name.startswith("torch-") and name.endswith("-info"):
                sys.exit(print(name[6:].rpartition(".")[0]))
' 2>/dev/null) && [ -n "$st_torch$st_own" ] && break
    st_own=''
  done
  export TORCH_FR_BUFFER_SIZE="${TORCH_FR_BUFFER_SIZE:-${TORCH_NCCL_TRACE_BUFFER_SIZE:-2000}}"
  export TORCH_FR_DUMP_TEMP_FILE="${TORCH_FR_DUMP_TEMP_FILE:-${TORCH_NCCL_DEBUG_INFO_TEMP_FILE:-$SLURMTRAIN_LAUNCH_DIR/flight-rank-}}"
  export TORCH_NCCL_DUMP_ON_TIMEOUT="${TORCH_NCCL_DUMP_ON_TIMEOUT:-1}"
  case $st_torch in
    1.* | 2.[0-8] | 2.[0-8].* | 2.[0-8][!0-9]*) export TORCH_NCCL_TRACE_BUFFER_SIZE="$TORCH_FR_BUFFER_SIZE" TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$TORCH_FR_DUMP_TEMP_FILE" ;;
  esac
  unset st_python st_line st_torch st_own
fi

st_srun_args=(
  --nodes=1
  --ntasks=1
  --ntasks-per-node=1
  --kill-on-bad-exit=1 # when one rank fails the others are ended, or they would wait for it in a collective for ever
  --wait=0             # a rank that ends well early ends nobody else (a site's WaitTime would)
  --label              # each line begins with its rank
  --input=none
  --export=ALL
)
# What the agent changes for one launch, for example --exclude=<a lost node>.
read -r -a st_agent_args <<<"${SLURMTRAIN_SRUN_ARGS:-}"

# Runs in each rank; $1… is the command. Only here are Slurm's variables those of the rank.
st_rank='
export RANK="$SLURM_PROCID" WORLD_SIZE="${SLURM_STEP_NUM_TASKS:-$SLURM_NTASKS}" NODE_RANK="$SLURM_NODEID"
export LOCAL_RANK="$SLURM_LOCALID" LOCAL_WORLD_SIZE=1
if [ -n "${SLURMTRAIN_LAUNCH_DIR:-}" ]; then # where @record of torch.distributed.elastic writes the exception
  export TORCHELASTIC_ERROR_FILE="$SLURMTRAIN_LAUNCH_DIR/error-rank-$RANK.json"
fi
if [ "$SLURM_PROCID" = 0 ]; then
  # The primary (success: primary): this shell stays beside it, to tell the agent that it ended well. Signals go on to it.
  (trap - INT; exec "$@") &
  st_main=$!
  for st_name in HUP INT QUIT TERM USR1 USR2; do trap "kill -s $st_name $st_main 2>/dev/null" "$st_name"; done
  while :; do
    wait "$st_main"
    st_code=$?
    if [ "$st_code" -le 128 ] || ! kill -0 "$st_main" 2>/dev/null; then break; fi
  done
  if [ "$st_code" -gt 128 ]; then
    wait "$st_main" 2>/dev/null
    st_again=$?
    if [ "$st_again" -ne 127 ]; then st_code=$st_again; fi
  fi
  if [ "$st_code" -eq 0 ] && [ -n "${SLURMTRAIN_PRIMARY_DONE:-}" ]; then : >"$SLURMTRAIN_PRIMARY_DONE"; fi
  exit "$st_code"
fi
exec "$@"
'

exec srun "${st_srun_args[@]}" "${st_agent_args[@]}" bash -c "$st_rank" slurmtrain-rank python train.py
