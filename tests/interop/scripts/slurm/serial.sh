#!/bin/bash
#SBATCH --job-name=wordcount
#SBATCH --output=%x-%j.out
#SBATCH --ntasks=1
#SBATCH --time=00:10:00
#SBATCH --mem=500M
#SBATCH --partition=batch

echo "started on $(hostname) in $SLURM_JOB_PARTITION"
wc -l <params.txt
cd $SLURM_SUBMIT_DIR && echo "finished $SLURM_JOB_ID"
