"""``gsched doctor``: what is wrong with this installation, in words."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from gsched.cli.common import (
    color_option,
    head_option,
    option,
    print_json,
    printable,
    wants_color,
)
from gsched.cli.local import head_checks, login_checks, machine_checks, notify_checks
from gsched.cli.local.findings import Finding, Level, collected, ok
from gsched.cli.local.layout import ClusterLayout, layout_of
from gsched.cli.local.options import subcommand
from gsched.client import HeadClient
from gsched.config.environment import (
    DEFAULT_NODE_STATE_DIR,
    environment,
)
from gsched.config.tables import Config
from gsched.errors import CannotWriteError
from gsched.model.units import format_size
from gsched.model.wording import counted
from gsched.pki.files import files_of

_COLORS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


@subcommand("doctor")
@option(
    "--dir", "directory", metavar="D", default=None, help="Check the cluster of `gsched up` in D."
)
@option("--config", "config_path", metavar="FILE", default=None, help="Check this configuration.")
@option(
    "--save-snapshot",
    "snapshot_path",
    metavar="FILE",
    default=None,
    help="Only save what the policies see to a new file, for a bug report.",
)
@head_option
@color_option
def doctor(
    *,
    directory: str | None,
    config_path: str | None,
    snapshot_path: str | None,
    head_address: str,
    color: str,
    as_json: bool,
) -> int:
    """Check this installation for problems, and show how to fix them.

    Exits with 1 if a check failed, and with 0 if there are only warnings or nothing was found.
    """
    layout = _find_layout(directory, head_address)
    if snapshot_path is not None:
        address = head_address or (str(layout.socket) if layout is not None else "")
        return _save_snapshot(snapshot_path, address, as_json=as_json)
    findings = examine(layout, config_path=config_path, head_address=head_address)
    broken = sum(finding.level is Level.FAIL for finding in findings)
    if as_json:
        print_json({"ok": not broken, "findings": findings})
    else:
        _print(findings, colored=wants_color(color, sys.stdout))
    return 1 if broken else 0


def _save_snapshot(path: str, head_address: str, *, as_json: bool) -> int:
    """Write what the policies see to a file that only the caller can read, and that is new.

    Raises:
        CannotWriteError: it is there already, or cannot be written.
    """
    content = HeadClient(head_address).snapshot()
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:
            file.write(content)
    except OSError as error:
        raise CannotWriteError(
            f"--save-snapshot: {path}: {error.strerror}", hint="give the name of a new file"
        ) from None
    if as_json:
        print_json({"path": path, "size_bytes": len(content)})
    else:
        print(f"wrote {path} ({format_size(len(content))}); replay it with: gsim plan {path}")
        print("it contains names of users' jobs, nodes and kinds: check it before you share it")
    return 0


def _find_layout(directory: str | None, head_address: str) -> ClusterLayout | None:
    """Return the cluster of ``gsched up`` that is meant: by --dir, or by where the head is."""
    if directory is not None:
        return layout_of(directory)
    address = head_address or environment("GSCHED_HEAD")
    if address.startswith("/"):
        layout = layout_of(str(Path(address).parent))
        if layout.exists and str(layout.socket) == address:
            return layout
    return None


@collected
def examine(
    layout: ClusterLayout | None, *, config_path: str | None, head_address: str
) -> Iterator[Finding]:
    """Return everything that was found, machine first, then configuration, then the head."""
    yield machine_checks.check_python(sys.version_info[:3])
    yield machine_checks.check_cgroup()
    yield machine_checks.check_gpus()
    yield machine_checks.check_torchrun()
    if layout is not None and config_path is None:
        config_path = str(layout.config)
    finding, config = machine_checks.check_config(config_path)
    private_tmp = config is not None and config.node.private_tmp
    yield from login_checks.check_login(private_tmp=private_tmp)
    yield finding
    if config is not None and (layout is not None or _is_head_here(config)):
        yield from _check_head_files(config)
    if config is not None:
        yield machine_checks.check_cpu_binding(config)
        yield from machine_checks.check_gpu_fence(config)
        yield from machine_checks.check_private_tmp(config)
        yield from machine_checks.check_gpu_share(config)
        if layout is not None or _is_head_here(config):
            yield from notify_checks.check_ways(config.notify)
            yield from notify_checks.check_power(config.power)
            yield from notify_checks.check_idle_warnings(config)
        spool = Path(config.node.state_dir or DEFAULT_NODE_STATE_DIR)
        yield from machine_checks.check_spool(spool)
        yield from machine_checks.check_node_certificate(config)
        yield from machine_checks.check_node_disks(config)
    if layout is not None:
        if os.access(layout.directory, os.W_OK):  # others may not read the pid files
            yield from machine_checks.check_pid_files(layout)
        head_address = head_address or str(layout.socket)
    yield from head_checks.check_head(head_address)


def _is_head_here(config: Config) -> bool:
    """Return whether the configured head keeps its files on this machine."""
    return os.path.isdir(config.head.state_dir)


@collected
def _check_head_files(config: Config) -> Iterator[Finding]:
    state = Path(config.head.state_dir)
    yield from machine_checks.check_state_directory(state)
    yield machine_checks.check_certificates(files_of(config.head.state_dir, config.tls))
    if not os.access(state, os.X_OK):
        return
    if os.path.exists(state / "gsched.db"):
        yield machine_checks.check_private(state / "gsched.db", "database")
    else:
        yield ok("database", "none yet: the head creates it at its first start")


def _print(findings: list[Finding], *, colored: bool) -> None:
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        level = f"{finding.level:<4}"
        if colored:
            level = click.style(level, fg=_COLORS[finding.level])
        print(f"{level}  {finding.subject:<{width}}  {printable(finding.text)}")
        if finding.todo:
            print(f"{'':4}  {'':{width}}  -> {printable(finding.todo)}")
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    warnings = counted(counts[Level.WARN], "warning")
    print(f"\n{counts[Level.OK]} ok, {warnings}, {counts[Level.FAIL]} failed")
