#!/bin/csh -f
#SBATCH --job-name=csh-job
#SBATCH --ntasks=2
#SBATCH --nodes=1
#SBATCH --time=10
setenv THREADS $SLURM_NTASKS
if ( $?SLURM_JOB_ID ) then
    echo "csh with $THREADS tasks"
endif
