"""Hosts join, work and lose their certificates: on booted systems, by the lines of the guide.

Five hosts boot a systemd of their own on one bridge: head, two nodes, a login host and a laptop
that is no member. They share no file system. Each step prints ``ok`` or ``not ok`` and its time,
and needs those before it; ends with 1 if one failed.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from scripts.reproduce.hosts_machines import CommandError, Host, Network, run

NAMES = ("head", "n1", "n2", "login", "laptop")
USERS = ("alice", "bob")
MEMBERS = {"n1": "node", "n2": "node", "login": "login"}
NEEDED = {"debootstrap": "debootstrap", "systemd-nspawn": "systemd-container", "tcpdump": "tcpdump"}
INCLUDED = "systemd,systemd-sysv,dbus,python3,adduser,procps,openssh-server,iproute2"
CANARY = "canary-that-nobody-may-read"
CONTROL = "control-in-clear-text"
PORT = 15010
CONFIG = "/etc/gsched/gsched.toml"
LIFETIME_S = 30
ALERT = 0x15  # the first byte of one of TLS
SOON_S = 60.0


class Site:
    """The hosts, and what several steps do with them."""

    def __init__(self, hosts: dict[str, Host], network: Network) -> None:
        self.hosts = hosts
        self.network = network

    def __getattr__(self, name: str) -> Host:
        try:
            return self.hosts[name]
        except KeyError:
            raise AttributeError(name) from None

    def line(self, role: str, name: str = "", ttl: str = "15m") -> str:
        """Return a new line of ``gsched join``."""
        named = f" --name {name}" if name else ""
        made = self.head(f"gsched token create --role {role}{named} --ttl {ttl} --json")
        return str(json.loads(made)["line"])

    def join(self, name: str) -> None:
        """Make a host a member by one line."""
        self.hosts[name](f"{self.line(MEMBERS[name], name)} && systemctl enable --now gnode")

    def submit(self, words: str, script: str, *, on: str = "login") -> str:
        """Submit a script as alice and return the job's number."""
        printed = self.hosts[on](f"printf %s {shlex.quote(script)} | gsub {words}", user="alice")
        return printed.partition(".")[0]

    def state(self, job: str) -> str:
        """Return a job's state, of one that has finished its exit code or what ended it."""
        shown = json.loads(self.head(f"gstat -x --json {job}", user="alice"))
        (row,) = shown["jobs"]
        outcome = row["outcome"] or {}
        if outcome.get("kind") == "exited":
            return f"exit {outcome['exit_code']}"
        return str(outcome.get("kind") or row["state"])

    def nodes(self) -> dict[str, str]:
        """Return the state of each node."""
        rows = json.loads(self.head("gnodes --json"))["nodes"]
        return {row["name"]: row["state"] for row in rows}

    def certificates(self) -> dict[str, dict[str, object]]:
        """Return what the head knows of each member's certificate."""
        rows = json.loads(self.head("gsched authority show --json"))["nodes"]
        return {row["node"]: row for row in rows}

    def gnode(self, name: str) -> str:
        """Return the process number of a host's gnode."""
        return self.hosts[name]("systemctl show -p MainPID --value gnode")


def soon(condition: Callable[[], object], what: str, within_s: float = SOON_S) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + within_s
    while True:
        try:
            if condition():
                return
        except (CommandError, json.JSONDecodeError, KeyError, ValueError) as error:
            last: object = error
        else:
            last = ""
        if time.monotonic() > until:
            raise AssertionError(f"not within {within_s:g} s: {what}\n{last}")
        time.sleep(0.3)


def expect(found: object, wanted: object, what: str) -> None:
    """Fail with both values if they differ."""
    if found != wanted:
        raise AssertionError(f"{what}: {found!r}, not {wanted!r}")


def refused(host: Host, script: str, words: str, *, user: str = "root") -> None:
    """Fail unless a command is refused in a sentence that has these words."""
    ran = host.run(script, user=user)
    printed = ran.stdout + ran.stderr
    if ran.returncode == 0 or words not in printed or "Traceback" in printed:
        raise AssertionError(f"{host.name}$ {script}\nexit {ran.returncode}: {printed}")


def the_head_starts(site: Site) -> None:
    """The head listens for nodes; its own gnode writes the output of its users' jobs."""
    site.head("dpkg -i /root/gsched.deb")
    config = site.head.root / CONFIG.lstrip("/")
    printed = config.read_text()
    printed = printed.replace("[head]\n", f'[head]\nnode_host = "{site.head.address}"\n', 1)
    printed = printed.replace("[node]\n", '[node]\nrole = "login"\n', 1)
    config.write_text(printed)
    site.head("systemctl enable --now gschedd gnode")
    soon(lambda: site.head("gnodes --login --json"), "the head answers")


def a_bare_host_runs_a_job_by_one_line(site: Site) -> str:
    """From a system without gsched to the output of its first job."""
    line = site.line("node", "n1")
    started_s = time.monotonic()
    site.n1("dpkg -i /root/gsched.deb")
    installed_s = time.monotonic()
    site.n1(f"{line} && systemctl enable --now gnode")
    site.submit("-N first --wait", "hostname; id -un", on="head")
    ended_s = time.monotonic()
    expect(site.head("cat first.o1", user="alice"), "n1\nalice", "the output")
    return (
        f"{ended_s - started_s:.1f} s, of which the package {installed_s - started_s:.1f} s, "
        f"the line and the job {ended_s - installed_s:.1f} s"
    )


def users_submit_on_a_login_host(site: Site) -> None:
    """With the name that the kernel gives; root of a login host and users without a job do not."""
    site.login("dpkg -i /root/gsched.deb")
    site.join("login")
    site.login("mkdir project", user="alice")
    job = site.submit(f"-N {CANARY} --wait", f"hostname; pwd; echo {CANARY}", on="login")
    expect(site.login(f"head -1 {CANARY}.o{job}", user="alice"), "n1", "the output")
    refused(site.login, "echo true | gsub", "root")
    refused(site.n1, "gstat", "bob has no job on node n1", user="bob")


def output_returns_without_a_shared_file_system(site: Site) -> None:
    """The directory of submission is on the login host only; a job submits another one."""
    script = "hostname; echo echo inner | gsub -N inner; echo failed >&2; exit 3"
    job = site.login(
        f"cd project && printf %s {shlex.quote(script)} | gsub -N outer", user="alice"
    ).partition(".")[0]
    soon(lambda: site.login(f"cat project/outer.e{job}", user="alice") == "failed", "its errors")
    first, printed = site.login(f"cat project/outer.o{job}", user="alice").splitlines()
    expect(first, "n1", "the host")
    inner = printed.partition(".")[0]
    soon(lambda: site.state(inner) == "exit 0", "the job that a job has submitted ends")
    refused(site.n1, "test -e /home/alice/project", "")


def a_laptop_works_through_ssh(site: Site) -> None:
    """By the real ssh and sshd; the laptop is no member and has no certificate."""
    site.laptop("dpkg -i /root/gsched.deb")
    site.laptop(
        "mkdir -m 700 .ssh && ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519", user="alice"
    )
    key = site.laptop("cat .ssh/id_ed25519.pub", user="alice")
    site.login(
        f"umask 077; mkdir -p .ssh; echo {shlex.quote(key)} >.ssh/authorized_keys", user="alice"
    )
    site.laptop("ssh-keyscan -t ed25519 login >>.ssh/known_hosts", user="alice")
    far = "GSCHED_HEAD=ssh://login"
    printed = site.laptop(f"echo hostname | {far} gsub -N far --wait", user="alice")
    job = printed.partition(".")[0]
    expect(site.laptop(f"{far} gpeek {job}", user="alice"), "n1", "what gpeek shows")
    refused(site.laptop, "gstat", "", user="alice")


def each_wrong_line_is_explained(site: Site) -> None:
    """On a bare host; at the end the right line counts."""
    site.n2("dpkg -i /root/gsched.deb")
    late = site.line("node", ttl="1s")
    other = site.line("node", "n7")
    good = site.line("node", "n2")
    words = good.split()
    time.sleep(1.5)
    refused(site.n2, late, "expired")
    refused(site.n2, f"{other} --name n2", "n7")
    refused(site.n2, " ".join([*words[:-1], "sha256:" + "0" * 64]), "nothing was sent")
    refused(site.n2, " ".join([*words[:2], "head:9", *words[3:]]), "no answer")
    refused(site.n2, good.replace("join", "join --as-head"), "")
    site.n2(f"{good} && systemctl enable --now gnode")
    soon(lambda: site.nodes()["n2"] == "up", "n2 is up")
    refused(site.laptop, good, "ago by node n2")


def what_is_not_tls_is_refused(site: Site) -> None:
    """A request in clear text gets an error without a body of the API; garbage gets nothing."""
    program = """
import socket
end = socket.create_connection(("head", {port}), 10)
end.settimeout(30)
end.sendall({sent!r} * 64)
try:
    got = end.recv(4096)
except ConnectionError:
    got = b""
print(got.hex())
"""
    for sent in (b"GET /v1/jobs HTTP/1.1\r\nHost: head\r\n\r\n", b"\xff\x00garbage"):
        script = program.format(port=PORT, sent=sent)
        got = bytes.fromhex(site.laptop(f"python3 -c {shlex.quote(script)}"))
        if got and got[0] != ALERT and got[:10] not in (b"HTTP/1.0 4", b"HTTP/1.1 4"):
            raise AssertionError(f"the head has answered {got!r}")
    expect(site.nodes(), {"n1": "up", "n2": "up"}, "the nodes")


def long_jobs(site: Site) -> dict[str, str]:
    """Start a job on each node; return its number by node."""
    jobs = {}
    for name in ("n1", "n2"):
        words = f"-N long -l walltime=1:00:00 -l nodes={name}"
        jobs[name] = site.submit(
            words, f"echo {CANARY}; while [ ! -e /tmp/stop ]; do sleep 1; done"
        )
    for job in jobs.values():
        soon(lambda job=job: site.state(job) == "running", f"job {job} runs")  # type: ignore[misc]  # its own
    return jobs


def certificates_renew_while_jobs_run(site: Site) -> str:
    """A new authority with a short lifetime; then renewals, with no restart of a gnode."""
    jobs = long_jobs(site)
    gnodes = {name: site.gnode(name) for name in MEMBERS}
    before = site.certificates()
    site.head(
        f"sed -i '/^\\[tls\\]$/a lifetime_s = {LIFETIME_S}' {CONFIG}; systemctl restart gschedd"
    )
    soon(lambda: site.nodes() == {"n1": "up", "n2": "up"}, "the nodes are back")
    site.head("gsched authority replace")

    def renewed() -> bool:
        now = site.certificates()
        return all(now[name]["expires_s"] != before[name]["expires_s"] for name in MEMBERS)

    soon(renewed, "all have certificates of the new authority")
    site.head("gsched authority finish")
    for number in range(2):
        before = site.certificates()
        soon(renewed, f"renewal {number + 1}", 3.0 * LIFETIME_S)
    expect({name: site.gnode(name) for name in MEMBERS}, gnodes, "gnode's processes")
    expect([site.state(job) for job in jobs.values()], ["running"] * 2, "the jobs")
    site.head(f"sed -i '/^lifetime_s = {LIFETIME_S}$/d' {CONFIG}; systemctl restart gschedd")
    soon(lambda: site.nodes() == {"n1": "up", "n2": "up"}, "the nodes are back")
    return f"jobs {' and '.join(jobs.values())} ran meanwhile"


def a_revoked_host_is_shut_out_at_once(site: Site) -> str:
    """With a job on it; its certificate is refused for ever, and a new token lets it return."""
    (job,) = [each for each in running(site) if each["nodes"] == ["n2"]]
    started_s = time.monotonic()
    site.head("gnodes revoke n2")
    soon(lambda: site.nodes()["n2"] != "up", "n2 is not up")
    took_s = time.monotonic() - started_s
    soon(lambda: "revoked" in site.n2("journalctl -q -u gnode --since -2min"), "its log says so")
    site.n2("systemctl restart gnode")
    time.sleep(3)
    if site.nodes()["n2"] == "up":
        raise AssertionError("n2 is up again with a certificate that was revoked")
    site.n2(f"{site.line('node', 'n2')} && systemctl restart gnode")
    soon(lambda: site.nodes()["n2"] == "up", "n2 is up with a new certificate")
    return (
        f"its connection ended within {took_s:.1f} s; job {job['id']}: {site.state(str(job['id']))}"
    )


def running(site: Site) -> list[dict[str, object]]:
    """Return the rows of running jobs."""
    rows = json.loads(site.head("gstat --json", user="alice"))["jobs"]
    return [row for row in rows if row["state"] == "running"]


def a_killed_head_finds_all_again(site: Site) -> str:
    """SIGKILL of the head; nodes and login host connect again, and the jobs end well."""
    jobs = [str(each["id"]) for each in running(site)]
    site.head("kill -9 $(systemctl show -p MainPID --value gschedd)")
    started_s = time.monotonic()
    soon(lambda: site.nodes() == {"n1": "up", "n2": "up"}, "the nodes are back")
    took_s = time.monotonic() - started_s
    for name in ("n1", "n2"):
        site.hosts[name]("touch /tmp/stop", user="alice")
    for job in jobs:
        soon(lambda job=job: site.state(job) == "exit 0", f"job {job} ends well")  # type: ignore[misc]  # its own
    return f"all back after {took_s:.1f} s; {len(jobs)} jobs ended well"


def nothing_was_sent_in_clear_text(site: Site) -> str:
    """In all that the bridge has carried; a datagram in clear text shows that one would be seen."""
    program = f"import socket; socket.socket(2, 2).sendto(b'{CONTROL}', ('head', 9))"
    site.laptop(f"python3 -c {shlex.quote(program)}")
    time.sleep(1)
    captured = site.network.end_capture()
    if CONTROL.encode() not in captured:
        raise AssertionError("the capture does not have the text that was sent in clear")
    for word in (CANARY, "alice"):
        if word.encode() in captured:
            raise AssertionError(f"{word!r} was sent in clear text")
    return f"{len(captured) / 1e6:.1f} MB looked at"


STEPS: tuple[Callable[[Site], str | None], ...] = (
    the_head_starts,
    a_bare_host_runs_a_job_by_one_line,
    users_submit_on_a_login_host,
    output_returns_without_a_shared_file_system,
    a_laptop_works_through_ssh,
    each_wrong_line_is_explained,
    what_is_not_tls_is_refused,
    certificates_renew_while_jobs_run,
    a_revoked_host_is_shut_out_at_once,
    a_killed_head_finds_all_again,
    nothing_was_sent_in_clear_text,
)


def bare_system(where: Path) -> None:
    """Make a bare system with the user that all hosts have."""
    release = dict(
        line.split("=", 1)
        for line in Path("/etc/os-release").read_text().splitlines()
        if "=" in line
    )
    codename = release["VERSION_CODENAME"].strip('"')
    print(f"hosts: a bare {codename} in {where}", file=sys.stderr)
    run("debootstrap", f"--include={INCLUDED}", codename, str(where), timeout_s=3600)


def main() -> int:
    """Boot the hosts, and take the steps."""
    parser = argparse.ArgumentParser(prog="hosts", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--root",
        type=Path,
        help="bare system, made there if it is missing [default: made and removed]",
    )
    parser.add_argument(
        "--package", type=Path, help="package to install [default: scripts/package builds it]"
    )
    parser.add_argument("--keep", action="store_true", help="keep the hosts' files")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("needs root, for systemd-nspawn")
    for program, package in NEEDED.items():
        if shutil.which(program) is None:
            parser.error(f"{program} is missing: apt-get install {package}")
    scratch = Path(tempfile.mkdtemp(prefix="gsched-hosts-"))
    try:
        return run_site(options.root or scratch / "base", options.package, scratch)
    finally:
        if options.keep:
            print(f"hosts: their files are in {scratch}", file=sys.stderr)
        else:
            shutil.rmtree(scratch)


def run_site(base: Path, package: Path | None, scratch: Path) -> int:
    """Make what is missing, boot the hosts, take the steps, and power the hosts off."""
    if not (base / "etc/os-release").exists():
        bare_system(base)
    if package is None:
        print("hosts: building the package", file=sys.stderr)
        package = Path(run("scripts/package", str(scratch)).stdout.split()[-1])
    network = Network(scratch)
    hosts: dict[str, Host] = {}
    try:
        for number, name in enumerate(NAMES, 2):
            hosts[name] = Host(name, number, network, base, scratch)
        table = "".join(f"{each.address} {name}\n" for name, each in hosts.items())
        for host in hosts.values():
            shutil.copy(package, host.root / "root/gsched.deb")
            host.begin_boot(table)
        for host in hosts.values():
            host.wait_for_boot()
            for number, user in enumerate(USERS, 1000):
                host(f"useradd -m -s /bin/sh -u {number} {user}")
        return take_steps(Site(hosts, network))
    finally:
        for host in hosts.values():
            host.close()
        network.close()


def take_steps(site: Site) -> int:
    """Take the steps until one fails; return the exit status."""
    for number, step in enumerate(STEPS, 1):
        started_s = time.monotonic()
        name = step.__name__.replace("_", " ")
        try:
            figure = step(site)
        except (AssertionError, CommandError, subprocess.SubprocessError) as error:
            print(f"not ok {number} - {name}\n    " + str(error).replace("\n", "\n    "))
            return 1
        took_s = time.monotonic() - started_s
        print(
            f"ok {number} - {name} ({took_s:.0f} s)" + (f": {figure}" if figure else ""), flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
