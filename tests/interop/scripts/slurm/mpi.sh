#!/bin/bash
#SBATCH --job-name=ring
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=4
#SBATCH --time=02:00:00
#SBATCH --mem-per-cpu=512M
#SBATCH --output=ring.%j.out
#SBATCH --error=ring.%j.err
#SBATCH --mail-type=END,FAIL
#SBATCH --mail-user=someone@example.org

module purge
module load openmpi/4.1
echo "tasks: $SLURM_NTASKS"
mpirun sh -c 'echo rank $OMPI_COMM_WORLD_RANK'
srun sh -c 'echo task $SLURM_PROCID of $SLURM_NTASKS'
