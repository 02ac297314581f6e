#!/bin/bash
#SBATCH --ntasks=2
#SBATCH --gpus-per-task=1
#SBATCH --gpu-bind=closest
#SBATCH --mem-per-gpu=4G
#SBATCH --cpus-per-gpu=2
#SBATCH --nodes=1
#SBATCH --time=30
srun sh -c 'echo "task $SLURM_PROCID sees ${CUDA_VISIBLE_DEVICES:-none}"'
