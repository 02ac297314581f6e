"""Heads that are reached by HTTPS, with a token of a user: ``https://host:port``."""

import errno
import os
import socket
import ssl
import stat
from typing import Final

from gsched.config.environment import environment
from gsched.errors import ConfigError, HeadUnreachableError

DIRECTORY: Final = "~/.config/gsched"
_NEW: Final = (
    "gsched token create --role user on a host of the cluster prints one; put it into "
    f"$GSCHED_TOKEN, or into {DIRECTORY}/token with mode 0600"
)
#: What to do about a certificate, by OpenSSL's X509_V_ERR_*; others are of an unknown authority.
_EXPIRED, _NOT_YET, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64
_CLOCKS: Final = "compare the clocks of both hosts (timedatectl)"
_NAMES: Final = (
    "use a name of the head's host and the port of listen in [https], not the one for nodes; an "
    "administrator adds names and addresses to names in [https]"
)
_HINTS: Final = {
    _EXPIRED: f"{_CLOCKS}; if they agree, the certificate has to be renewed on the head",
    _NOT_YET: _CLOCKS,
    _OTHER_NAME: _NAMES,
    _OTHER_ADDRESS: _NAMES,
}
_AUTHORITY: Final = (
    "if the cluster has its own authority, save what gsched authority certificate prints on one "
    f"of its hosts as {DIRECTORY}/ca.pem, or name the file in $GSCHED_CA"
)


def token() -> str:
    """Return the user's token: ``$GSCHED_TOKEN``, else ``~/.config/gsched/token``.

    Raises:
        ConfigError: there is none, or others can read it.
    """
    given = environment("GSCHED_TOKEN").strip()
    if not given:
        path = os.path.expanduser(f"{DIRECTORY}/token")
        try:
            with open(path, encoding="ascii") as file:
                if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                    raise ConfigError(
                        f"{path} can be read by other users",
                        hint=f"chmod 600 {path}; if somebody may have read it: gsched token revoke",
                    )
                given = file.read(1024).strip()
        except FileNotFoundError:
            raise ConfigError("a head at https:// takes a token", hint=_NEW) from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}", hint=_NEW) from error
    if not given.isascii() or not given.isprintable() or " " in given:
        raise ConfigError("the token for the head has characters that no token has", hint=_NEW)
    return given


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """Return a connection to a head whose certificate is that of its name.

    The authorities that count are those of ``$GSCHED_CA``, else ``~/.config/gsched/ca.pem``, else
    those of this machine.

    Raises:
        OSError: nobody answers.
        HeadUnreachableError: another host answers, or one that does not use TLS.
        ConfigError: the file with authorities cannot be used.
    """
    token()  # before anybody is connected to
    context = _context()
    made = socket.create_connection((host, port), timeout=timeout_s)
    try:
        return context.wrap_socket(made, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise HeadUnreachableError(
            f"the certificate of {host}:{port} is not trusted: {error.verify_message}",
            hint=_HINTS.get(error.verify_code, _AUTHORITY),
        ) from None
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # it is stopping
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from None
    except ssl.SSLError as error:
        raise HeadUnreachableError(
            f"what listens at {host}:{port} does not use TLS 1.3: {error.reason or error}",
            hint="check the address: see listen of [https] in the head's configuration",
        ) from None
    except BaseException:
        made.close()
        raise


def _context() -> ssl.SSLContext:
    own = os.path.expanduser(f"{DIRECTORY}/ca.pem")
    path = environment("GSCHED_CA") or (own if os.path.exists(own) else "")
    try:
        context = ssl.create_default_context(cafile=path or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{path} cannot be used: {error.strerror or error}",
            hint="it has certificates in PEM: see gsched authority certificate",
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
