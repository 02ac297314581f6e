#!/bin/bash
# Prepare, compute three times, collect; and tell if something failed.
cd "$(dirname "$0")" || exit 1
prepare=$(qsub -h -N prepare -l walltime=0:05:00 stage.pbs)
ids=
for part in a b c; do
    job=$(qsub -N part-$part -v PART=$part -W depend=afterok:$prepare stage.pbs)
    ids=$ids:$job
done
qsub -N collect -W depend=afterok$ids stage.pbs
qsub -N alarm -W depend=afternotok$ids stage.pbs
qrls $prepare # nothing starts before the whole chain is there
