#!/bin/bash
# One launch of slurmtrain run gpt-20261129-1700-1a2b3c: 1 node with 1 rank each, launcher srun.
# The agent starts it, as often as needed; job.sbatch does when the agent cannot run; you may, inside an allocation.
# It ends in `exec srun`, so that its process and its exit code are srun's.
# shellcheck disable=SC2016  # what stands in single quotes is meant as it is

RUN_DIR=/scratch/ada/slurmtrain/runs/gpt-20261129-1700-1a2b3c
: "${SLURM_JOB_ID:?start this inside a Slurm allocation of the same shape}"
cd -- /home/ada/gpt || exit 1

# The agent runs without these; the training gets them back as they were.
for name in LD_LIBRARY_PATH LD_PRELOAD LD_AUDIT; do
  saved="SLURMTRAIN_SAVED_$name"
  if [ -n "${!saved+x}" ]; then
    export "$name=${!saved}"
    unset "$saved"
  fi
done

# Where the ranks meet: the first node of the job, and a port of its own for each launch, so that a straggler of the
# launch before cannot join.
MASTER_ADDR=${SLURMTRAIN_MASTER_ADDR:-$(scontrol show hostnames "${SLURM_JOB_NODELIST:-}" 2>/dev/null | head -n 1)}
MASTER_ADDR=${MASTER_ADDR:-${SLURMD_NODENAME:-$(hostname)}}
if ! getent hosts "$MASTER_ADDR" >/dev/null; then # a node's name in Slurm need not be its name on the network
  node_addr=$(scontrol -o show node "$MASTER_ADDR" 2>/dev/null | sed -n 's/.* NodeAddr=\([^ ]*\) .*/\1/p')
  MASTER_ADDR=${node_addr:-$MASTER_ADDR}
fi
restart=${SLURM_RESTART_COUNT:-0}
launch=${SLURMTRAIN_LAUNCH:-0}
MASTER_PORT=${SLURMTRAIN_MASTER_PORT:-$((20000 + (SLURM_JOB_ID * 131 + restart * 7 + launch) % 12000))}
export MASTER_ADDR MASTER_PORT

export SLURMTRAIN_RUN_ID=gpt-20261129-1700-1a2b3c SLURMTRAIN_RUN_DIR="$RUN_DIR"
checkpoint_dir=/scratch/ada/slurmtrain/runs/gpt-20261129-1700-1a2b3c/checkpoints
export SLURMTRAIN_CHECKPOINT_DIR="${SLURMTRAIN_CHECKPOINT_DIR:-$checkpoint_dir}"
export SLURMTRAIN_DONE_FILE="${SLURMTRAIN_DONE_FILE:-$RUN_DIR/done}"
export SLURMTRAIN_STOP_FILE="${SLURMTRAIN_STOP_FILE:-$RUN_DIR/stop}"
export SLURM_EXPORT_ENV=ALL # sbatch --export may have narrowed what srun hands on
export PYTHONUNBUFFERED=1   # lines appear when they are printed, also those just before a crash
export PYTHONFAULTHANDLER=1 # a crash in native code leaves a Python stack in the log

srun_args=(
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
read -r -a agent_args <<<"${SLURMTRAIN_SRUN_ARGS:-}"

# Runs in each rank; $1… is the command. Only here are Slurm's variables those of the rank.
rank='
export RANK="$SLURM_PROCID" WORLD_SIZE="${SLURM_STEP_NUM_TASKS:-$SLURM_NTASKS}" NODE_RANK="$SLURM_NODEID"
export LOCAL_RANK="$SLURM_LOCALID" LOCAL_WORLD_SIZE=1
if [ -n "${SLURMTRAIN_LAUNCH_DIR:-}" ]; then # where @record of torch.distributed.elastic writes the exception
  export TORCHELASTIC_ERROR_FILE="$SLURMTRAIN_LAUNCH_DIR/error-rank-$RANK.json"
fi
if [ "$SLURM_PROCID" = 0 ]; then
  # The primary (success: primary): this shell stays beside it, to tell the agent that it ended well. Signals go on to it.
  (trap - INT; exec "$@") &
  main=$!
  for name in HUP INT QUIT TERM USR1 USR2; do trap "kill -s $name $main 2>/dev/null" "$name"; done
  while :; do
    wait "$main"
    code=$?
    if [ "$code" -le 128 ] || ! kill -0 "$main" 2>/dev/null; then break; fi
  done
  if [ "$code" -gt 128 ]; then
    wait "$main" 2>/dev/null
    again=$?
    if [ "$again" -ne 127 ]; then code=$again; fi
  fi
  if [ "$code" -eq 0 ] && [ -n "${SLURMTRAIN_PRIMARY_DONE:-}" ]; then : >"$SLURMTRAIN_PRIMARY_DONE"; fi
  exit "$code"
fi
exec "$@"
'

exec srun "${srun_args[@]}" "${agent_args[@]}" bash -c "$rank" slurmtrain-rank python train.py
