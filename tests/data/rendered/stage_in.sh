#!/bin/bash
# stage_in of slurmtrain run gpt-20261129-1700-1a2b3c: on each node.
# The agent starts it; you may, too, inside an allocation.
# shellcheck disable=SC2016  # what stands in single quotes is meant as it is
set +eu # a submitting shell may have exported its SHELLOPTS
set -o pipefail

export SLURMTRAIN_RUN_ID=gpt-20261129-1700-1a2b3c SLURMTRAIN_RUN_DIR=/scratch/ada/slurmtrain/runs/gpt-20261129-1700-1a2b3c
st_checkpoint_dir=/scratch/ada/slurmtrain/runs/gpt-20261129-1700-1a2b3c/checkpoints
export SLURMTRAIN_CHECKPOINT_DIR="${SLURMTRAIN_CHECKPOINT_DIR:-$st_checkpoint_dir}"

if [ -z "${SLURMTRAIN_ON_NODE:-}" ]; then
  export SLURMTRAIN_ON_NODE=1 SLURM_EXPORT_ENV=ALL
  exec srun --overlap --nodes=2 --ntasks=2 --ntasks-per-node=1 --mem=0 --kill-on-bad-exit=1 --wait=0 \
    --label --input=none --export=ALL /bin/bash "$SLURMTRAIN_RUN_DIR/stage_in.sh"
fi

for st_name in LD_LIBRARY_PATH LD_PRELOAD LD_AUDIT; do
  st_saved="SLURMTRAIN_SAVED_$st_name"
  if [ -n "${!st_saved+x}" ]; then export "$st_name=${!st_saved}"; fi
done
cd -- /home/ada/gpt || exit 1
export BUCKET=s3://ada

# A line that fails ends the stage.
st_failed() {
  printf 'slurmtrain: line %d of %s failed with exit code %d\n' "$1" "$2" "$3"
  exit "$3"
}
module load aws
st_code=$?; [ "$st_code" -eq 0 ] || st_failed 1 environment.setup "$st_code"
aws s3 sync $BUCKET/data /local/data
st_code=$?; [ "$st_code" -eq 0 ] || st_failed 1 stage_in.run "$st_code"
test -e /local/data/index
st_code=$?; [ "$st_code" -eq 0 ] || st_failed 2 stage_in.run "$st_code"
