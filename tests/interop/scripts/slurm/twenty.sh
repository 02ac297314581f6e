#!/bin/bash
# Twenty jobs, each from a script written on the spot.
cd "$(dirname "$0")" || exit 1
for seed in $(seq 1 20); do
    sbatch --quiet <<EOF
#!/bin/sh
#SBATCH --job-name=seed$seed
#SBATCH --ntasks=1 --time=00:05:00 --mem=100M
#SBATCH --output=/dev/null
echo $seed >>seeds
EOF
done
