#!/bin/bash
#SBATCH --job-name=wholenode
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=1:00:00
#SBATCH --threads-per-core=1
echo "cpus: $SLURM_CPUS_ON_NODE"
