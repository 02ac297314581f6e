#!/bin/bash
#SBATCH --job-name=finetune
#SBATCH --nodes=1
#SBATCH --gres=gpu:2
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=4G
#SBATCH --constraint=bigmem
#SBATCH --mail-type=ALL
#SBATCH --time=12:00:00

echo "GPUs: $CUDA_VISIBLE_DEVICES"
echo "on node: $SLURM_GPUS_ON_NODE"
