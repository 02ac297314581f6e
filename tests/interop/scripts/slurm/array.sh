#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --array=1-6%2
#SBATCH --output=logs/%A_%a.out
#SBATCH --time=5
#SBATCH --cpus-per-task=1

# The line of the parameter file that belongs to this task.
read -r alpha beta < <(sed -n "${SLURM_ARRAY_TASK_ID}p" params.txt)
echo "alpha=$alpha beta=$beta" >"result.$SLURM_ARRAY_TASK_ID"
echo "task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_MIN-$SLURM_ARRAY_TASK_MAX, $SLURM_ARRAY_TASK_COUNT in all"
