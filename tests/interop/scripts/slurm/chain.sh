#!/bin/bash
# Prepare, compute three times, collect; clean up whatever happened.
cd "$(dirname "$0")" || exit 1
prepare=$(sbatch --parsable --job-name=prepare stage.sh)
ids=
for part in a b c; do
    job=$(sbatch --parsable -J part-$part --export=ALL,PART=$part --dependency=afterok:$prepare stage.sh)
    ids=$ids:$job
done
collect=$(sbatch --parsable -J collect -d afterok$ids --kill-on-invalid-dep=yes stage.sh)
sbatch -J clean --dependency=afterany:$collect stage.sh | awk '{ print "last job is " $4 }'
sbatch -J clean --dependency=singleton stage.sh
