"""What the doctor finds of programs of the site, the mail server, and the host of the URL."""

import os
import smtplib
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

from gsched.cli.local.findings import Finding, collected, fail, ok, warn
from gsched.config.notify import NotifyConfig
from gsched.config.tables import Config, PowerConfig

PATIENCE_S = 5.0


@collected
def check_ways(notify: NotifyConfig) -> Iterator[Finding]:
    """Check every way that is configured; nothing is sent."""
    for key in ("sendmail", "command"):
        path = getattr(notify, key)
        if path:
            yield check_program("notify", key, path)
    if notify.smtp_password_file:
        yield check_password(notify.smtp_password_file)
    if notify.smtp_host:
        yield check_mail_server(notify)
    if notify.url:
        yield check_url(notify.url)


@collected
def check_idle_warnings(config: Config) -> Iterator[Finding]:
    """Say whether owners of jobs with idle GPUs are warned by mail, where they are warned."""
    rule = config.idle_gpus
    actions = {rule.action, rule.interactive.action, *(queue.action for queue in rule.queue)}
    warns = bool(actions - {None, "report"})
    if warns and not config.notify.sends_mail:
        text = "owners of jobs with idle GPUs get no mail, only a line in the error file of the job"
        yield warn("idle_gpus", text, "set [notify] sendmail or smtp_host")


@collected
def check_power(power: PowerConfig) -> Iterator[Finding]:
    """Check the programs that power nodes down and up; none is run."""
    for key in ("suspend_program", "resume_program"):
        path = getattr(power, key)
        if path:
            yield check_program("power", key, path)


def check_program(table: str, key: str, path: str) -> Finding:
    """Say whether a program of the site, which a key names, can be run."""
    subject = f"{table} {key}"
    if not os.path.isfile(path):
        return fail(subject, f"{path}: no such file", f"correct [{table}] {key}")
    if not os.access(path, os.X_OK):
        return fail(subject, f"{path} cannot be run", f"chmod 755 {path}")
    status = os.stat(path)
    if status.st_mode & 0o002:
        return fail(subject, f"{path} can be changed by every user", f"chmod o-w {path}")
    return ok(subject, f"{path} can be run")


def check_password(path: str) -> Finding:
    """Say whether the password of the mail server is there, and private."""
    try:
        status = os.stat(path)
    except PermissionError:
        return ok("notify password", f"{path} is private")
    except OSError as error:
        return fail("notify password", f"{path}: {error.strerror}", "create it with mode 0600")
    if status.st_mode & 0o077:
        text = f"{path} can be read by other users"
        return fail("notify password", text, f"chmod 600 {path}")
    return ok("notify password", f"{path} is private")


def check_mail_server(notify: NotifyConfig) -> Finding:
    """Say whether the mail server answers, with the encryption that is configured."""
    address = f"{notify.smtp_host}:{notify.smtp_port}"
    context = ssl.create_default_context() if notify.smtp_tls != "none" else None
    limit_s = min(PATIENCE_S, notify.timeout_s)
    try:
        with (
            smtplib.SMTP_SSL(notify.smtp_host, notify.smtp_port, timeout=limit_s, context=context)
            if notify.smtp_tls == "tls"
            else smtplib.SMTP(notify.smtp_host, notify.smtp_port, timeout=limit_s)
        ) as server:
            if notify.smtp_tls == "starttls":
                server.starttls(context=context)
            server.noop()
    except (OSError, smtplib.SMTPException) as error:
        text = f"{address} does not answer: {str(error) or type(error).__name__}"
        return fail("notify smtp_host", text, "check [notify] smtp_host, smtp_port and smtp_tls")
    return ok("notify smtp_host", f"{address} answers")


def check_url(url: str) -> Finding:
    """Say whether the host of the URL accepts connections."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), PATIENCE_S).close()
    except OSError as error:
        text = f"{parts.hostname}:{port}: {error.strerror or error}"
        return warn("notify url", text, "check [notify] url and the network")
    return ok("notify url", f"{parts.hostname}:{port} accepts connections")
