"""What a job says of mail and hooks, checked against what the site has."""

from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from gsched.config.notify import NotifyConfig
from gsched.errors import InvalidRequestError
from gsched.model import limits
from gsched.model.job import JobSpec
from gsched.model.mail import checked_points, checked_recipients, domain_of, wants_mail
from gsched.protocol.actions import Alteration
from gsched.protocol.submissions import SubmitJob

SENDS_NO_MAIL: Final = "this site sends no mail"


class Notify(Struct, frozen=True, kw_only=True):
    """What a job states of it, in one form, and what its user should be told."""

    stated: dict[str, object]
    warnings: tuple[str, ...] = ()


def checked_notify(submitted: SubmitJob, settings: NotifyConfig) -> Notify:
    """Return mail points, recipients and URL of a submission.

    Raises:
        InvalidRequestError: one cannot be, or the site does not allow it.
    """
    points = checked_points(submitted.mail_points)
    warnings: tuple[str, ...] = ()
    try:
        recipients = allowed_recipients(submitted.mail_to, settings)
    except InvalidRequestError as error:
        if not submitted.warn_unknown:
            raise
        recipients = ""
        warnings = (f"{error.message}: -M is ignored",)
    if wants_mail(points, submitted.mail_to) and not (settings.sends_mail or settings.has_hook):
        asks = "the job's request for mail has no effect"
        warnings = (f"{SENDS_NO_MAIL}: {asks}; gwait returns when a job has ended",)
    elif recipients and not settings.sends_mail:
        warnings = (f"{SENDS_NO_MAIL}: recipients have no effect, only its hook is called",)
    stated: dict[str, object] = {"mail_points": points, "mail_to": recipients}
    stated["notify_url"] = _url(submitted.notify_url, settings)
    return Notify(stated=stated, warnings=warnings)


def kept_notify(spec: JobSpec, settings: NotifyConfig) -> Notify:
    """Return what a job keeps of it that is submitted again: nothing that is no longer allowed."""
    stated: dict[str, object] = {}
    warnings: list[str] = []
    checks = (("mail_to", allowed_recipients, spec.mail_to), ("notify_url", _url, spec.notify_url))
    for name, checked, text in checks:
        try:
            checked(text, settings)
        except InvalidRequestError as error:
            stated[name] = ""
            warnings.append(f"{error.message}: it is ignored")
    return Notify(stated=stated, warnings=tuple(warnings))


def altered_notify(alteration: Alteration, settings: NotifyConfig) -> dict[str, object]:
    """Return what an alteration changes of it.

    Raises:
        InvalidRequestError: as above, or the site sends no mail.
    """
    changes: dict[str, object] = {}
    points = None if alteration.mail_points is None else checked_points(alteration.mail_points)
    if points is not None:
        changes["mail_points"] = points
    if alteration.mail_to is not None:
        changes["mail_to"] = allowed_recipients(alteration.mail_to, settings)
    if alteration.notify_url is not None:
        changes["notify_url"] = _url(alteration.notify_url, settings)
    wanted = wants_mail(points or "", alteration.mail_to or "") if points != "n" else False
    if wanted and not (settings.sends_mail or settings.has_hook):
        raise InvalidRequestError(
            f"{SENDS_NO_MAIL}: it would wait for mail that never comes",
            hint="omit -m and -M, or write -m n; gwait returns when a job has ended",
        )
    return changes


def origin_of(url: str) -> str:
    """Return what everybody may see of a URL: what follows is often a secret."""
    return "/".join([*url.split("/")[:3], "..."]) if url else ""


def allowed_recipients(stated: str, settings: NotifyConfig, *, option: str = "-M") -> str:
    """Return recipients to which the site sends mail.

    Raises:
        InvalidRequestError: one of them is invalid, or the site sends none to its domain.
    """
    names = checked_recipients(stated, option=option)
    allowed = {each.lower() for each in settings.recipient_domains}
    for name in names:
        domain = domain_of(name) or settings.mail_domain.lower()
        if allowed and domain not in allowed:
            raise InvalidRequestError(
                f"{option}: this site sends no mail to {domain}",
                hint=f"domains to which it does: {', '.join(sorted(allowed))}",
            )
    return ",".join(names)


def _url(stated: str, settings: NotifyConfig) -> str:
    """Return a URL whose origin the site allows: the head's machine opens it, not the user's."""
    if not stated:
        return ""
    if not settings.allow_urls:
        raise InvalidRequestError(
            "--notify: this site allows no URLs of users",
            hint="ask an administrator for allow_urls in [notify] of gsched.toml, or use gwait",
        )
    allowed = ", ".join(sorted(settings.allow_urls))
    try:
        parts = urlsplit(stated)
        origin = f"{parts.scheme}://{parts.netloc}".lower()
    except ValueError:
        origin = ""
    if not stated.isascii() or not stated.isprintable() or set(' \\"<>') & set(stated):
        origin = ""
    if origin not in settings.allow_urls:
        raise InvalidRequestError(
            f"--notify: {limits.shown(stated)} is not allowed at this site",
            hint=f"allowed are URLs that begin with: {allowed}",
        )
    return stated
