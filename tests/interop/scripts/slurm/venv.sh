#!/bin/bash
#SBATCH --time=0:20:00
#SBATCH --cpus-per-task=2
#SBATCH --output=%j-%N-%u.log

set -euo pipefail
python3 -m venv --without-pip "$TMPDIR/env"
source "$TMPDIR/env/bin/activate"
srun python -c 'import sys; print("virtual:", sys.prefix != sys.base_prefix)'
python - <<'PY'
import os
print("cpus:", os.environ["SLURM_CPUS_PER_TASK"], "id:", os.environ["SLURM_JOBID"])
PY
