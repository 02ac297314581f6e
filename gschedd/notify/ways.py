"""The ways by which notices are delivered, each within a time limit."""

import asyncio
import contextlib
import logging
import os
import signal
import smtplib
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from email import message_from_bytes
from email.policy import SMTP
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from gsched.config.notify import NotifyConfig
from gsched.logs import one_line
from gschedd.notify.ledger import Waiting
from gschedd.notify.notices import COMMAND, MAIL, Notice
from gschedd.notify.texts import variables_of

log = logging.getLogger("gschedd.notify")

#: Replies of mail servers from here on are for good.
PERMANENT: Final = 500
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: A conversation is cut from outside first, whatever it waits for then.
_CUT_S: Final = 1.0
_MAX_ERROR_CHARS: Final = 200  # characters of an error that are kept
#: Exit codes of sendmail that a further try does not change (sysexits: usage, data, no user).
_SENDMAIL_NEVER: Final = frozenset({64, 65, 67, 68})
_TOO_MANY: Final = frozenset({408, 425, 429})


class RefusedError(Exception):
    """The other side will never take it."""


class LaterError(Exception):
    """It was not delivered, and may be later.

    Attributes:
        is_down: the whole way does not work, not only this delivery.
    """

    def __init__(self, text: str, *, is_down: bool) -> None:
        super().__init__(one_line(text)[:_MAX_ERROR_CHARS])
        self.is_down = is_down


class Ways:
    """Delivers notices as the configuration says."""

    def __init__(self, config: NotifyConfig) -> None:
        self._config = config
        self._home = os.path.expanduser("~")
        self._session: aiohttp.ClientSession | None = None

    async def deliver(self, each: Waiting) -> None:
        """Deliver one notice.

        Raises:
            RefusedError: it will never be taken.
            LaterError: it was not delivered now.
        """
        if each.way == MAIL and self._config.sendmail:
            await self._run([self._config.sendmail, "-t", "-oi"], each.body, {}, _SENDMAIL_NEVER)
        elif each.way == MAIL:
            await self._by_smtp(each)
        elif each.way == COMMAND:
            notice = msgspec.json.decode(each.body, type=Notice)
            await self._run([self._config.command], each.body, variables_of(notice), frozenset())
        else:
            await self._post(each.target or self._config.url, each)

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()

    async def _run(
        self,
        command: list[str],
        content: bytes,
        variables: Mapping[str, str],
        never: frozenset[int],
    ) -> None:
        """Run a program with something on its standard input."""
        fixed = {"PATH": _PATH, "LANG": "C.UTF-8", "HOME": self._home}
        # A file in memory and no pipe: a program need not read what it does not need.
        source = os.memfd_create("notice", os.MFD_CLOEXEC)
        try:
            os.pwrite(source, content, 0)
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=source,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=fixed | dict(variables),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise LaterError(f"{command[0]}: {error.strerror}", is_down=True) from None
        finally:
            os.close(source)
        try:
            async with asyncio.timeout(self._config.timeout_s):
                reply = await _stderr_of(process)
        except TimeoutError:
            text = f"{command[0]} has not ended within {self._config.timeout_s:g} s"
            raise LaterError(text, is_down=True) from None
        finally:
            with contextlib.suppress(ProcessLookupError):  # also what it has started
                os.killpg(process.pid, signal.SIGKILL)
            if process.returncode is None:
                await process.wait()
        if process.returncode == 0:
            return
        text = f"{command[0]} has ended with exit status {process.returncode}: {reply}"
        if process.returncode in never:
            raise RefusedError(one_line(text)[:_MAX_ERROR_CHARS])
        raise LaterError(text, is_down=False)

    async def _by_smtp(self, each: Waiting) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, lambda: send_by_smtp(self._config, each.body))

    async def _post(self, url: str, each: Waiting) -> None:
        """Post to a URL. It is not followed elsewhere: the site allows this one."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._config.timeout_s),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "gsched",
            "Idempotency-Key": str(each.id),
        }
        try:
            async with self._session.post(
                url, data=each.body, headers=headers, allow_redirects=False
            ) as answer:
                status = answer.status
        except TimeoutError:
            text = f"no answer within {self._config.timeout_s:g} s"
            raise LaterError(text, is_down=True) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise LaterError(str(error) or type(error).__name__, is_down=True) from None
        if status // 100 == 2:
            return
        text = f"HTTP status {status}"
        if status // 100 == 5 or status in _TOO_MANY:
            raise LaterError(text, is_down=True)
        raise RefusedError(text)


async def _stderr_of(process: asyncio.subprocess.Process) -> str:
    """Wait for a program's end; return the beginning of what it wrote to standard error."""
    assert process.stderr is not None, "it is a pipe"
    stderr = b""
    while part := await process.stderr.read(4096):
        stderr = (stderr + part)[:_MAX_ERROR_CHARS]
    await process.wait()
    return stderr.decode("utf-8", "replace").strip()


def send_by_smtp(config: NotifyConfig, content: bytes) -> None:
    """Send a message to the mail server of the configuration; blocks for its time limit at most.

    Raises:
        RefusedError: the server will never take it.
        LaterError: it was not taken now.
    """
    message = message_from_bytes(content, policy=SMTP)
    recipients = [part.strip() for part in str(message["To"]).split(",")]

    def send(server: smtplib.SMTP) -> None:
        try:
            refused = server.sendmail(str(message["From"]), recipients, content)
        except smtplib.SMTPRecipientsRefused as error:
            refused = error.recipients
        if len(refused) == len(recipients):
            reply = "; ".join(f"{name}: {code}" for name, (code, _) in refused.items())
            if min(code for code, _ in refused.values()) >= PERMANENT:
                raise RefusedError(one_line(reply)[:_MAX_ERROR_CHARS])
            raise LaterError(reply, is_down=False)
        for name, (code, text) in refused.items():
            log.warning("the mail server refuses %s: %d %r", name, code, text[:_MAX_ERROR_CHARS])

    talk_to_server(config, send)


def talk_to_server(config: NotifyConfig, work: Callable[[smtplib.SMTP], None]) -> None:
    """Connect to the mail server, log in, do something with it, and leave; cut after the limit.

    Raises:
        RefusedError: it refuses what was sent, for good.
        LaterError: it cannot be reached, hangs, refuses the login, or what was sent for now.
    """
    limit_s = config.timeout_s
    context = ssl.create_default_context() if config.smtp_tls != "none" else None
    server = (
        smtplib.SMTP_SSL(timeout=limit_s + _CUT_S, context=context)
        if config.smtp_tls == "tls"
        else smtplib.SMTP(timeout=limit_s + _CUT_S)
    )
    late = threading.Event()
    timer = threading.Timer(limit_s, _cut, (server, late))
    timer.daemon = True
    timer.start()
    try:
        server._host = config.smtp_host  # type: ignore[attr-defined] # noqa: SLF001 - TLS checks its name against it
        server.connect(config.smtp_host, config.smtp_port)
        server.ehlo_or_helo_if_needed()
        if config.smtp_tls == "starttls":
            server.starttls(context=context)
        if config.smtp_user:
            password = Path(config.smtp_password_file).read_text(encoding="utf-8").strip()
            server.login(config.smtp_user, password)
        work(server)
        with contextlib.suppress(smtplib.SMTPException, OSError):  # it was taken by then
            server.quit()
    except smtplib.SMTPAuthenticationError as error:
        raise LaterError(f"login refused: {error.smtp_code}", is_down=True) from None
    except smtplib.SMTPResponseException as error:
        reply = f"{error.smtp_code} {error.smtp_error!r}"
        if error.smtp_code >= PERMANENT and not isinstance(error, smtplib.SMTPConnectError):
            raise RefusedError(one_line(reply)[:_MAX_ERROR_CHARS]) from None
        raise LaterError(reply, is_down=isinstance(error, smtplib.SMTPConnectError)) from None
    except (OSError, smtplib.SMTPException, ValueError) as error:
        reply = f"no answer within {limit_s:g} s" if late.is_set() else str(error)
        raise LaterError(reply or type(error).__name__, is_down=True) from None
    finally:
        timer.cancel()
        server.close()


def _cut(server: smtplib.SMTP, late: threading.Event) -> None:
    """End a conversation that takes too long: a server can send a byte now and then for ever."""
    late.set()
    connection: socket.socket | None = getattr(server, "sock", None)
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
