#!/bin/bash -l
#SBATCH --job-name=notebook
#SBATCH --time=1:00:00
#SBATCH --mem=4gb
#SBATCH --ntasks=1 --cpus-per-task=2   # two threads for the reader
module load anaconda3/2024.2
source "$(conda info --base)/etc/profile.d/conda.sh"
conda activate analysis
echo "environment: $CONDA_DEFAULT_ENV"
