#!/bin/bash
#SBATCH -J threads
#SBATCH -N 1
#SBATCH -n 1
#SBATCH -c 4
#SBATCH -t 1:00:00
#SBATCH --mem-per-cpu=512
#SBATCH --hint=nomultithread

export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
export OMP_PLACES=cores
echo "threads: $OMP_NUM_THREADS"
srun --cpus-per-task=$SLURM_CPUS_PER_TASK sh -c 'echo "step with $OMP_NUM_THREADS"'
