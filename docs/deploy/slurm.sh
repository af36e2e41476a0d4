#!/bin/sh
# A replay on two nodes by Slurm: three tasks, each on a node of its own, the first of them the head of a Ray cluster.
#
#     sbatch docs/deploy/slurm.sh rush.trace rush.log http://10.0.0.5:8000/v1
#
# The key is in the file that KEY_FILE names, readable by its owner alone; all nodes see it.
#SBATCH --job-name=loadshape
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=01:00:00
set -eu

[ $# -eq 3 ] || { echo "usage: sbatch slurm.sh TRACE LOG URL" >&2; exit 2; }
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
HEAD_PORT=$((20000 + SLURM_JOB_ID % 10000)) # another job of ours may have a head there, too
RAY_TMPDIR=/tmp/ray-$SLURM_JOB_ID           # /tmp/ray may be somebody else's
RAY_AUTH_MODE=token                         # whoever reaches an open Ray cluster can run programs on it
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export HEAD HEAD_PORT RAY_TMPDIR RAY_AUTH_MODE RAY_AUTH_TOKEN

# The script that runs is a copy elsewhere: rank.sh is looked for where the job was submitted, in the clone.
srun --cpu-bind=none sh "$SLURM_SUBMIT_DIR/docs/deploy/rank.sh" \
    loadshape replay "$1" --output "$2" --target "$3" ${KEY_FILE:+--key "file:$KEY_FILE"} \
    --ray auto --nodes "$((SLURM_JOB_NUM_NODES - 1))"
