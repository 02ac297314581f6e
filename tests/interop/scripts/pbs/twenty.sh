#!/bin/bash
# Twenty jobs, each from a script written on the spot.
cd "$(dirname "$0")" || exit 1
for seed in $(seq 1 20); do
    qsub <<EOF
#!/bin/sh
#PBS -N seed$seed
#PBS -l nodes=1:ppn=1,walltime=00:05:00,mem=100mb
#PBS -o seed$seed.out
#PBS -j oe
cd \$PBS_O_WORKDIR
echo $seed >>seeds
EOF
done
