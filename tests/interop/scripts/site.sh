# Stand-ins for what a site's start-up files provide: environment modules, conda, and the programs
# of some modules. Batch shells read it through BASH_ENV.

module() {
    case $1 in
    load | add)
        shift
        for loaded in "$@"; do
            export LOADEDMODULES="${LOADEDMODULES:+$LOADEDMODULES:}$loaded"
            case $loaded in
            openmpi*) eval 'mpirun() { _mpirun "$@"; }' ;;
            R*) eval 'Rscript() { echo "R: $*"; }' ;;
            matlab*) eval 'matlab() { echo "MATLAB: $*"; }' ;;
            chem*) eval 'g16() { echo "integrals" >"$GAUSS_SCRDIR/run.rwf"; echo "Normal termination of $1"; }' ;;
            esac
        done
        ;;
    purge) unset LOADEDMODULES ;;
    list) echo "modules: ${LOADEDMODULES:-none}" ;;
    esac
}

# Open MPI starts its ranks through pbsdsh's interface or srun; so does this.
_mpirun() {
    local ranks=${PBS_NP:-${SLURM_NTASKS:-1}}
    while [ $# -gt 0 ]; do
        case $1 in
        -np | -n) ranks=$2 && shift 2 ;;
        -machinefile | -hostfile | --hostfile | --map-by | --bind-to) shift 2 ;;
        -*) shift ;;
        *) break ;;
        esac
    done
    local rank
    for ((rank = 0; rank < ranks; rank++)); do
        OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=$ranks "$@" &
    done
    wait
}

conda() {
    case $1 in
    activate) export CONDA_DEFAULT_ENV=$2 CONDA_PREFIX="$HOME/conda/envs/$2" ;;
    deactivate) unset CONDA_DEFAULT_ENV CONDA_PREFIX ;;
    info) echo "$SITE/conda" ;;
    esac
}
export -f module conda _mpirun
