#!/bin/bash
#SBATCH --job-name=opt-freq
#SBATCH --nodes=1 --ntasks=1 --cpus-per-task=4
#SBATCH --mem=8GB
#SBATCH --time=4-04:00:00

module load chem/16
export GAUSS_SCRDIR=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/g16.$SLURM_JOB_ID
mkdir -p "$GAUSS_SCRDIR"
trap 'cp "$GAUSS_SCRDIR"/run.rwf "$SLURM_SUBMIT_DIR/"; rm -rf "$GAUSS_SCRDIR"' EXIT
cd "$GAUSS_SCRDIR" || exit 1
g16 molecule.com >"$SLURM_SUBMIT_DIR/molecule.log"
