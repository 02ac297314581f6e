#!/bin/bash
# A minute before the limit it saves its state and asks to be requeued.
#SBATCH --job-name=long
#SBATCH --time=00:01:02
#SBATCH --signal=B:USR1@60
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=long.out

save() {
    echo "saved at restart ${SLURM_RESTART_COUNT:-0}"
    scontrol requeue "$SLURM_JOB_ID"
}
trap save USR1
if [ "${SLURM_RESTART_COUNT:-0}" -ge 1 ]; then
    echo "complete"
    exit 0
fi
echo "begins"
sleep 300 &
wait
sleep 30 & # to be ended by the requeue
wait
