# Sets the checkout up in .venv; sourced by scripts/test, scripts/demo and .ci/run.
#
# gsched_setup            gsched itself with what its tests need
# gsched_setup_optimum    SciPy beside it, for the experiments that need it
# gsched_setup_training   torch and scikit-learn beside it, for the distributed training
# gsched_setup_frameworks transformers, accelerate and lightning beside those, for their callbacks
#
# All do nothing when nothing has changed since the last time. What is read:
#   GSCHED_PYTHON   the interpreter to build .venv with, instead of the first that will do
#   GSCHED_TORCH    what pip is told to install as torch (default: torch==2.13.0)
# shellcheck shell=bash

gsched_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
gsched_venv="$gsched_root/.venv"
gsched_setup_log="$gsched_venv/setup.log"

gsched_say() {
    printf 'set-up: %s\n' "$*" >&2
}

gsched_die() {
    printf 'set-up: %s\n' "$@" >&2
    exit 1
}

# Says why an interpreter will not do; says nothing if it will.
gsched_python_fault() {
    "$1" - 2>/dev/null <<'PYTHON' || printf 'does not run'
import sys

if sys.version_info < (3, 11):
    print("is Python %d.%d: 3.11 or later is needed" % sys.version_info[:2])
elif sys.version_info[:3] == (3, 12, 0):
    print("is Python 3.12.0, which does not drop root's groups (CVE-2023-6507): take 3.12.1")
PYTHON
}

# Prints the interpreter that .venv is made with.
gsched_find_python() {
    local candidate path fault seen=""
    local -a candidates=(/usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11)
    [ -n "${GSCHED_PYTHON:-}" ] && candidates=("$GSCHED_PYTHON")
    for candidate in "${candidates[@]}"; do
        path=$(command -v "$candidate") || continue
        fault=$(gsched_python_fault "$path")
        if [ -z "$fault" ]; then
            printf '%s\n' "$path"
            return 0
        fi
        seen="$seen $path $fault."
    done
    gsched_die "no Python that will do (looked for: ${candidates[*]}).$seen" \
        "on Debian 12 or Ubuntu 24.04: sudo apt-get install python3 python3-venv"
}

gsched_make_venv() {
    local python version
    if [ -x "$gsched_venv/bin/python" ] && "$gsched_venv/bin/python" -m pip --version >/dev/null 2>&1; then
        local fault
        fault=$(gsched_python_fault "$gsched_venv/bin/python")
        [ -z "$fault" ] && return 0
        gsched_say ".venv $fault; it is made anew"
    fi
    python=$(gsched_find_python) || exit 1
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        gsched_die "$python cannot make virtual environments: its venv package is not installed" \
            "on Debian or Ubuntu: sudo apt-get install python$version-venv"
    fi
    gsched_say "making .venv with $python (Python $version)"
    "$python" -m venv --clear "$gsched_venv" >&2 || gsched_die "$python -m venv $gsched_venv failed"
}

# gsched_pip WHAT ARGUMENTS...: installs quietly, and shows the log's end if it fails.
gsched_pip() {
    local what=$1 started=$SECONDS
    shift
    gsched_say "installing $what (log: .venv/setup.log)"
    if ! (cd "$gsched_root" && "$gsched_venv/bin/python" -m pip install \
        --no-input --disable-pip-version-check "$@") >>"$gsched_setup_log" 2>&1; then
        tail -n 15 "$gsched_setup_log" >&2
        gsched_die "installing $what failed: see above and $gsched_setup_log" \
            "pip needs to reach a package index, or one given with PIP_INDEX_URL"
    fi
    gsched_say "installed $what in $((SECONDS - started)) s"
}

# gsched_step NAME INPUTS COMMAND...: runs COMMAND unless it has run for the same INPUTS.
gsched_step() {
    local stamp="$gsched_venv/.gsched-$1" inputs=$2
    shift 2
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$inputs" ] && return 0
    rm -f "$stamp"
    "$@"
    printf '%s' "$inputs" >"$stamp"
}

# Two set-ups of one checkout wait for each other.
gsched_locked() {
    (
        if command -v flock >/dev/null; then
            exec 8>"$gsched_root/.venv-lock"
            flock 8
        fi
        "$@" 8>&-
    )
}

gsched_setup_steps() {
    gsched_make_venv
    # A plain .pth: setuptools' import hook for editable installs costs every command start-up time.
    gsched_step base "$gsched_root $(sha256sum <"$gsched_root/pyproject.toml")" \
        gsched_pip "gsched and its test tools" \
        --config-settings editable_mode=compat --editable "$gsched_root[test]"
}

gsched_setup() {
    gsched_locked gsched_setup_steps || exit 1
}

gsched_setup_optimum_steps() {
    gsched_step optimum "$(sha256sum <"$gsched_root/pyproject.toml")" \
        gsched_pip "SciPy" --config-settings editable_mode=compat --editable "$gsched_root[optimum]"
}

gsched_setup_optimum() {
    gsched_locked gsched_setup_optimum_steps || exit 1
}

gsched_setup_training_steps() {
    local torch=${GSCHED_TORCH:-torch==2.13.0}
    # The version is pinned: it is what the demo and the tests were checked with.
    # Bytecode is written at the first import: of most modules nobody makes use.
    gsched_step training "$torch" \
        gsched_pip "$torch and scikit-learn" --no-compile "$torch" scikit-learn
}

gsched_setup_training() {
    gsched_locked gsched_setup_training_steps || exit 1
}

# Half a minute, where torch takes two: .ci/run does it, scripts/test if it is told to.
gsched_setup_frameworks_steps() {
    local torch=${GSCHED_TORCH:-torch==2.13.0} # again, or pip may bring another one
    gsched_step frameworks "$torch transformers==5.23.0 accelerate==1.15.0 lightning==2.6.6" \
        gsched_pip "transformers, accelerate and lightning" \
        --no-compile "$torch" transformers==5.23.0 accelerate==1.15.0 lightning==2.6.6
}

gsched_setup_frameworks() {
    gsched_locked gsched_setup_frameworks_steps || exit 1
}
