#!/bin/bash
#SBATCH --ntasks=4
#SBATCH --nodes=1-1
#SBATCH --time=0:10:00
#SBATCH --mem-per-cpu=100M
# Many short steps, four at a time.
for i in 1 2 3 4; do
    srun --ntasks=1 --nodes=1 --exact --exclusive --mem=100M -c1 sh -c "echo step $i" >"step.$i" &
done
wait
cat step.*
