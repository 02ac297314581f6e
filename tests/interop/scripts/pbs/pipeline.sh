#!/bin/bash
# A job from standard input, then one for whose end the shell waits; qstat and qdel as users call them.
cd "$(dirname "$0")" || exit 1
echo 'cd $PBS_O_WORKDIR; echo "from a pipe" >piped' | qsub -N piped -l walltime=60 -
qsub -W block=true -N blocked -F "one two" arguments.pbs
held=$(qsub -h -N held stage.pbs)
qstat -f "$held" | grep -q 'job_state = H' && qrls "$held"
spare=$(qsub -h -N spare stage.pbs)
qdel "$spare"
