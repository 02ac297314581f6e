"""What the table ``[notify]`` must fulfil beyond the types and ranges of its keys."""

import os
import re
from typing import Final
from urllib.parse import urlsplit

from gsched.config_notify import HOOK_JOBS, MAIL_SUBJECTS, SMTP_TLS, NotifyConfig
from gsched.config_rules import BrokenRuleError, check_word
from gsched.errors import InvalidRequestError
from gsched.model.mail import checked_points, checked_recipients

_ORIGIN: Final = re.compile(r"https?://[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]{1,5})?")
_DOMAIN: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


def check_notify(notify: NotifyConfig) -> None:
    """Check the table.

    Raises:
        BrokenRuleError: the first rule that is broken.
    """
    if notify.sendmail and notify.smtp_host:
        raise BrokenRuleError(
            ("notify", "smtp_host"),
            "and sendmail are mutually exclusive",
            hint="keep one way for mail",
        )
    check_word(("notify", "smtp_tls"), notify.smtp_tls, SMTP_TLS)
    check_word(("notify", "hook_jobs"), notify.hook_jobs, HOOK_JOBS)
    check_word(("notify", "mail_subject"), notify.mail_subject, MAIL_SUBJECTS)
    if bool(notify.smtp_user) != bool(notify.smtp_password_file):
        raise BrokenRuleError(
            ("notify", "smtp_user"),
            "and smtp_password_file belong together",
            hint="give both, or neither for a server without login",
        )
    if notify.smtp_user and notify.smtp_tls == "none":
        raise BrokenRuleError(
            ("notify", "smtp_user"),
            "needs an encrypted connection: the password would be readable on the network",
            hint='set smtp_tls = "starttls" or "tls"',
        )
    for key in ("sendmail", "command", "smtp_password_file"):
        path = getattr(notify, key)
        if path and not os.path.isabs(path):
            raise BrokenRuleError(
                ("notify", key), f": relative path {path!r}", hint="give an absolute path"
            )
    _check_url(notify.url)
    for at, origin in enumerate(notify.allow_urls):
        if not _ORIGIN.fullmatch(origin):
            raise BrokenRuleError(
                ("notify", "allow_urls", at),
                f": invalid origin {origin!r}",
                hint="write scheme, host and port, in lower case: https://hooks.example.com",
            )
    _check_mail(notify)


def _check_url(url: str) -> None:
    if not url:
        return
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isascii() or not url.isprintable() or " " in url:
        raise BrokenRuleError(
            ("notify", "url"), f": invalid URL {url!r}", hint="write https://HOST/PATH"
        )


def _check_mail(notify: NotifyConfig) -> None:
    for key in ("default_points", "hook_points"):
        try:
            checked_points(getattr(notify, key))
        except InvalidRequestError as error:
            message = f": {error.message.removeprefix('-m: ')}"
            raise BrokenRuleError(("notify", key), message, hint=error.hint) from None
    try:
        senders = checked_recipients(notify.sender)
    except InvalidRequestError as error:
        raise BrokenRuleError(
            ("notify", "sender"), f": {notify.sender!r}", hint=error.hint
        ) from None
    if len(senders) > 1:
        raise BrokenRuleError(("notify", "sender"), "names several", hint="give one address")
    for domain in (notify.mail_domain, *notify.recipient_domains):
        if domain and not _DOMAIN.fullmatch(domain):
            key = "mail_domain" if domain == notify.mail_domain else "recipient_domains"
            raise BrokenRuleError(
                ("notify", key), f": invalid domain {domain!r}", hint="write example.com"
            )
