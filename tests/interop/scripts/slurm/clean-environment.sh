#!/bin/bash
#SBATCH --export=NONE
#SBATCH --get-user-env
#SBATCH --time=5
#SBATCH --tasks-per-node=1
#SBATCH --chdir=/tmp
#SBATCH -o %x.out
unset SLURM_EXPORT_ENV
echo "seed: ${SEED:-not exported} in $PWD"
