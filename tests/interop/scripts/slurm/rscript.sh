#!/bin/bash
#SBATCH -p batch -t 30 --mem 1G
#SBATCH --array 0-2
#SBATCH --output=r_%a.txt
module load R/4.3
Rscript --vanilla fit.R "$SLURM_ARRAY_TASK_ID" "$1"
