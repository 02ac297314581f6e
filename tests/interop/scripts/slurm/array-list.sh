#!/bin/bash
#SBATCH -J chosen
#SBATCH -a 1,3,5-6
#SBATCH -o chosen-%A-%a.txt
#SBATCH -t 00:05:00
awk -v want="$SLURM_ARRAY_TASK_ID" 'NR == want { print "row " want ": " $2 }' params.txt
