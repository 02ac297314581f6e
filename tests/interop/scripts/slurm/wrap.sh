#!/bin/bash
# Commands without a script, waiting, hold and release, lists and cancellation.
cd "$(dirname "$0")" || exit 1
sbatch --wait -n1 -t 5 -o wrapped.out --wrap="echo wrapped \$SLURM_JOB_NAME"
sbatch --wait -J failing --wrap 'exit 3'
echo "status $?"
held=$(sbatch --parsable -H -J held stage.sh)
squeue -h -j "$held" -o "%T %r"
scontrol release "$held"
spare=$(sbatch --parsable --hold -J spare stage.sh)
scancel "$spare"
sacct -n -X -P -j "$spare" -o State
