#!/bin/bash
#SBATCH --job-name=hybrid
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=2
#SBATCH --time=0-00:30
#SBATCH --account=physics
#SBATCH --qos=normal
#SBATCH --exclusive

export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
echo "$SLURM_JOB_NUM_NODES nodes, $SLURM_NTASKS tasks, $SLURM_NTASKS_PER_NODE on each"
scontrol show hostnames "$SLURM_JOB_NODELIST" >hosts
srun sh -c 'echo "task $SLURM_PROCID on node $SLURM_NODEID"'
