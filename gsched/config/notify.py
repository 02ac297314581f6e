"""The table ``[notify]`` of the configuration file."""

from typing import Annotated, Literal

import msgspec
from msgspec import Struct

from gsched.config.words import Domain, OptionalPath, Origin


class NotifyConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[notify]``: mail and hooks when jobs begin and end. Without any of its ways: none are sent.

    Attributes:
        sendmail: path of a program that sends a message from its standard input, called with
            ``-t -oi``.
        smtp_host: mail server, instead of ``sendmail``.
        smtp_port: of it.
        smtp_tls: how the connection is encrypted.
        smtp_user: account there; empty: no login.
        smtp_password_file: holds the password of ``smtp_user``.
        sender: address from which mail comes; empty: the head's account.
        mail_domain: of recipients without one; empty: this machine's name.
        recipient_domains: domains to which mail is sent; empty: all.
        default_points: mail points of jobs that state neither ``-m`` nor ``-M``.
        mail_subject: number, name and outcome of the job, or Torque's.
        mail_stderr_lines: last lines of the error output of a failed job below its mail; 0: none.
        mails_per_user_hour: more mails about jobs of one user are dropped.
        command: program that is run for each event, with the event as JSON on standard input.
        url: to which each event is posted as JSON.
        hook_points: at which points ``command`` and ``url`` are told, as letters of ``-m``.
        hook_jobs: only events for which ``-m`` of the job asks, or all.
        allow_urls: origins, as ``https://hooks.example.com``, of URLs of users (``--notify``).
        timeout_s: for one delivery.
        tries: deliveries that fail so often are dropped.
        retry_s: until the second try; four times as long before each further one, an hour at most.
    """

    sendmail: OptionalPath = ""
    smtp_host: str = ""
    smtp_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 25
    smtp_tls: Literal["none", "starttls", "tls"] = "none"
    smtp_user: str = ""
    smtp_password_file: OptionalPath = ""
    sender: str = ""
    mail_domain: Domain = ""
    recipient_domains: tuple[Domain, ...] = ()
    default_points: str = "n"
    mail_subject: Literal["outcome", "pbs"] = "outcome"
    mail_stderr_lines: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 10
    mails_per_user_hour: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 100
    command: OptionalPath = ""
    url: str = ""
    hook_points: str = "abef"
    hook_jobs: Literal["requested", "all"] = "requested"
    allow_urls: tuple[Origin, ...] = ()
    timeout_s: Annotated[float, msgspec.Meta(ge=0.1, le=600)] = 15.0
    tries: Annotated[int, msgspec.Meta(ge=1, le=100)] = 8
    retry_s: Annotated[float, msgspec.Meta(ge=0.05, le=3600)] = 10.0

    @property
    def sends_mail(self) -> bool:
        """Return whether there is a way for mail."""
        return bool(self.sendmail or self.smtp_host)

    @property
    def has_hook(self) -> bool:
        """Return whether a command or a URL of the site is told."""
        return bool(self.command or self.url)

    @property
    def is_on(self) -> bool:
        """Return whether anything is ever sent."""
        return self.sends_mail or self.has_hook or bool(self.allow_urls)
