#!/bin/bash
#SBATCH --job-name=mesh
#SBATCH --licenses=cfd:1
#SBATCH --time=2:00:00
#SBATCH -n 2
#SBATCH -N 1
module load matlab/R2023b
matlab -nodisplay -batch "simulate(2)"
