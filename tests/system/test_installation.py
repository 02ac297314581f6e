"""Fresh installations by the administrator's guide's own words, to the end of a job.

The commands are taken from the guide and run in its order, without a network: what pip would fetch
(dependencies and build tools) is what these tests themselves use, by PYTHONPATH.
"""

import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.guide import shell_blocks
from tests.support.processes import kill_all, processes_of

ROOT = Path(__file__).resolve().parents[2]
GUIDE = "administrators-guide.md"
SOURCES = ("gsched", "gschedd", "gnode", "man", "etc", "docs", "scripts")
FILES = ("Makefile", "pyproject.toml", "setup.py", "README.md", "LICENSE")
TIMEOUT_S = 300.0

pytestmark = pytest.mark.timeout(TIMEOUT_S + 60)

OFFLINE = {
    "PIP_NO_INDEX": "1",
    "PIP_NO_DEPS": "1",
    "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this one the wrong way round
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    "PYTHONPATH": sysconfig.get_path("purelib"),
}

#: Then a user submits a job and waits for its end; its output tells as whom it ran.
SUBMIT = """
cd "$WORK"
echo 'id -un' | {as_user} gsub -N first --wait
cat first.o*
"""


@pytest.fixture
def top() -> Iterator[Path]:
    """A directory that other users reach, with a checkout in it."""
    made = Path(tempfile.mkdtemp(prefix="gsched-install-"))
    made.chmod(0o755)
    for name in SOURCES:
        shutil.copytree(
            ROOT / name, made / "src" / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in FILES:
        shutil.copy(ROOT / name, made / "src" / name)
    (made / "bin").mkdir()  # "python3" is the interpreter whose packages PYTHONPATH has
    (made / "bin" / "python3").symlink_to(Path(sys.executable).resolve())
    yield made
    shutil.rmtree(made)


def ordinary_user() -> pwd.struct_passwd:
    """Return somebody who may run jobs."""
    for account in pwd.getpwall():
        if 1000 <= account.pw_uid < 65534:
            return account
    pytest.skip("this machine has no account with a uid of 1000 or more")


def run(script: str, *, cwd: Path, env: dict[str, str], prefix: tuple[str, ...] = ()) -> str:
    """Run a script until its first failing command; return what it wrote."""
    log = cwd.parent / "log"
    with log.open("wb") as output:  # no pipe: daemons keep it open
        done = subprocess.run(
            [*prefix, "/bin/bash", "-ec", script],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
    text = log.read_text(errors="replace")
    assert done.returncode == 0, text[-8000:]
    return text


def test_installation_without_root(top: Path, process_marker: str) -> None:
    """A virtual environment in a home directory, a cluster of one user's own."""
    [block] = shell_blocks(GUIDE, "### Without root")
    home = top / "home"
    (home / "work").mkdir(parents=True)
    prefix: tuple[str, ...] = ()
    if os.getuid() == 0:  # the installation is an unprivileged user's all the same
        account = ordinary_user()
        for path in [top, *top.rglob("*")]:
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
        ids = (f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
        prefix = ("setpriv", *ids)
    env = {
        **OFFLINE,
        **{name: value for name, value in os.environ.items() if name.startswith("GSCHED_TEST")},
        "PATH": f"{top}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "WORK": str(home / "work"),
        "LANG": "C.UTF-8",
    }
    script = block + SUBMIT.format(as_user="") + "gsched down\n"

    try:
        told = run(script, cwd=top / "src", env=env, prefix=prefix)
    finally:
        kill_all(lambda: processes_of(process_marker, top))

    user = pwd.getpwuid((home / "work").stat().st_uid).pw_name
    assert told.splitlines().count(user) == 1
    assert (home / ".local" / "state" / "gsched" / "gsched.db").exists()


#: What stands for systemctl where there is no systemd: does what the installed units say.
SYSTEMCTL = """#!/bin/bash -e
[ "$1" = enable ] || exit 1  # gnode asks at its end whether the machine shuts down
for unit in gschedd gnode; do
    file=/usr/local/lib/systemd/system/$unit.service
    value() { sed -n "s/^$1=//p" $file; }
    user=$(value User)
    for kind in State:/var/lib Runtime:/run; do
        path=${kind#*:}/$(value ${kind%:*}Directory)
        mode=$(value ${kind%:*}DirectoryMode)
        install -d -m ${mode:-0755} -o ${user:-root} -g ${user:-root} $path
    done
    runuser -u ${user:-root} -- $(value ExecStart) &> /var/log/$unit.log &
done
"""

#: A machine of its own: another root directory in which nothing of gsched is installed.
MACHINE = """
mount --make-rprivate /
mount -t tmpfs tmpfs {top}/machine
mkdir {top}/machine/{{upper,work,root}}
mount -t overlay overlay -o \\
    lowerdir=/,upperdir={top}/machine/upper,workdir={top}/machine/work {top}/machine/root
cd {top}/machine/root
mount --rbind /dev dev
mount -t proc proc proc
mount -t sysfs sysfs sys
for each in run tmp opt; do mount -t tmpfs -o mode=0755 tmpfs $each; done
chmod 1777 tmp
rm -rf etc/gsched var/lib/gsched var/lib/gnode usr/bin/g{{sched,schedd,node,sub}}
ip link set lo up
mkdir -p run/src run/bin
cp -r {top}/src/. run/src
cp {top}/commands run/commands
cp -P {top}/bin/* run/bin
if grep -q ^gsched: etc/passwd; then chroot . userdel gsched; fi
exec chroot . /bin/bash -c 'cd /run/src && exec bash -e /run/commands'
"""


#: Of the same version. What installs it looks for a systemd that runs, and there is none here.
UPGRADE = """
echo '# changed' >> gsched/errors.py
scripts/install
tail -qn 1 /opt/gsched/lib/python3*/site-packages/gsched/errors.py
"""

#: A purge ends daemons that run, and waits for the processes that they have started.
REMOVALS = {
    "with systemd's units": """
scripts/install --uninstall
find /opt /usr/local -name '*gsched*' -o -name gnode -o -name gsub
scripts/install --uninstall || echo "nothing is left to remove"
""",
    "without systemd": """
runuser -u gsched -- gschedd &
gnode &
until gsched doctor && pgrep -u gsched -f gschedd.monitor; do (( ++again < 60 )) || exit 1; done
scripts/install --purge
getent passwd gsched || echo "the account is gone"
find /opt /usr/local /etc /var/lib -name '*gsched*' -o -name gnode
echo "nothing is left to remove"
""",
}


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root can make another root directory")
@pytest.mark.parametrize("variant", REMOVALS)
def test_installation_on_a_fresh_machine(top: Path, process_marker: str, variant: str) -> None:
    """As root, head and node on one machine; the head is not root, the job is its user's."""
    first, instead = shell_blocks(GUIDE, "## Installing")
    if variant == "without systemd":
        first = instead
    elif shutil.which("systemd-sysusers") is None:
        pytest.skip("systemd-sysusers is not installed")
    # The daemons need a moment: an administrator would ask the doctor again.
    patient = "until gsched doctor; do (( ++asked < 30 )) || exit 1; done\n"
    assert "\ngsched doctor\n" in first
    commands = first.replace("gsched doctor\n", patient)
    user = ordinary_user().pw_name
    is_upgraded = variant == "with systemd's units"
    after = f"""
export WORK=/tmp/work
install -d -o {user} $WORK
{SUBMIT.format(as_user=f"runuser -u {user} --")}
gsched init
stat -c 'the head runs as %U' /proc/$(cat /var/lib/gsched/gschedd.pid)
stat -c 'the node runs as %U' /proc/$(cat /var/lib/gnode/gnode.pid)
stat -c '%U %a %n' /etc/gsched/* /var/lib/gsched/pki/authority.pem
stat -c '%U %a %n' /var/lib/gsched /var/lib/gnode /run/gsched
test -s /opt/gsched/share/man/man1/gsub.1 && test -s /usr/local/share/man/man8/gnode.8
for pid in $(cat /var/lib/gsched/gschedd.pid /var/lib/gnode/gnode.pid); do
    kill $pid && tail --pid=$pid -f /dev/null
done
cd /run/src
{UPGRADE if is_upgraded else ""}
{REMOVALS[variant]}"""
    (top / "commands").write_text(commands + after)
    (top / "bin" / "systemctl").write_text(SYSTEMCTL)
    (top / "bin" / "systemctl").chmod(0o755)
    (top / "machine").mkdir()
    env = {
        **OFFLINE,
        **{name: value for name, value in os.environ.items() if name.startswith("GSCHED_TEST")},
        "GSCHED_PYTHON": "python3",
        "PATH": "/run/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
    }
    if not _can_overlay(top):
        pytest.skip("no overlay file system can be mounted here")

    # Its processes end with its first one, which is the chroot's shell.
    told = run(
        MACHINE.format(top=shlex.quote(str(top))),
        cwd=top / "src",
        env=env,
        prefix=("unshare", "--mount", "--pid", "--fork", "--net", "--kill-child"),
    )

    lines = told.splitlines()
    assert lines.count(user) == 1
    assert {"the head runs as gsched", "the node runs as root"} <= set(lines)
    owners = [line for line in lines if re.fullmatch(r"\S+ \d+ /\S+", line)]
    assert owners == [
        "root 644 /etc/gsched/gsched.toml",
        "gsched 600 /var/lib/gsched/pki/authority.pem",
        "gsched 700 /var/lib/gsched",
        "root 711 /var/lib/gnode",
        "gsched 755 /run/gsched",
    ]
    assert "kept /etc/gsched/gsched.toml" in lines
    assert "created the cluster's authority /var/lib/gsched/pki/authority.pem" in lines
    assert lines.index(
        "kept the cluster's authority /var/lib/gsched/pki/authority.pem"
    ) > lines.index(user)
    assert "install: gsched" in told.partition("(upgrade)")[0]
    if is_upgraded:
        assert "# changed" in told.partition("(upgrade)")[2].splitlines(), "of the same version"
    if variant == "without systemd":
        last = "the account is gone"
        assert "install: stopping gschedd (" in told
    else:
        last = "account gsched; --purge removes them"
    (end,) = [number for number, line in enumerate(lines) if line.endswith(last)]
    left = lines[end + 1 :]
    assert [line for line in left if line.startswith("/")] == []
    assert left[-1] == "nothing is left to remove"
    assert not processes_of(process_marker, top)


def _can_overlay(top: Path) -> bool:
    """Return whether this kernel lets us mount an overlay in a namespace of our own."""
    script = f"""
mount --make-rprivate / && mount -t tmpfs tmpfs {top}/machine && cd {top}/machine &&
mkdir upper work root &&
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
"""
    return (
        subprocess.run(
            ["unshare", "--mount", "/bin/bash", "-c", script],
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )
