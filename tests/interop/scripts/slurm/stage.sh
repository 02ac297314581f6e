#!/bin/sh
#SBATCH --ntasks=1
#SBATCH --time=2:00
#SBATCH --output=stage-%j.out
echo "$SLURM_JOB_NAME ${PART:-}" >>steps
