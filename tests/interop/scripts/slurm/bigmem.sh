#!/bin/bash
#SBATCH -J assemble
#SBATCH --mem=40G
#SBATCH --cpus-per-task=2
#SBATCH --time=2-00:00:00
#SBATCH --exclude=n2
#SBATCH --tmp=1G
#SBATCH --comment="de novo"
echo "memory: $SLURM_MEM_PER_NODE MB on $SLURMD_NODENAME"
