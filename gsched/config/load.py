"""Reads the configuration file."""

import hashlib
import os
import stat
from typing import Final

import msgspec
from msgspec import Struct

from gsched.config.environment import config_path, environment
from gsched.config.tables import Config
from gsched.config.units import BadValueError, plain_numbers
from gsched.errors import ConfigError

_MAX_CHARACTERS: Final = 4 * 1024 * 1024  # of a configuration file


def _text_of(path: str) -> str:
    """Return the content of a regular file of a bounded size: a device may have no end.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read.
        ConfigError: it is no such file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigError(f"{path}: cannot be read: not a regular file", hint="see gsched.toml(5)")
    with open(fd, encoding="utf-8") as stream:
        text = stream.read(_MAX_CHARACTERS + 1)
    if len(text) > _MAX_CHARACTERS:
        raise ConfigError(f"{path}: the file has more than 4mb", hint="see gsched.toml(5)")
    return text


class ConfigFile(Struct, frozen=True, kw_only=True):
    """A configuration as it was read.

    Attributes:
        text: of the file; None: there is none, and all keys have their defaults.
    """

    path: str
    config: Config
    text: str | None = None

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the file; empty: there is none."""
        return "" if self.text is None else hashlib.sha256(self.text.encode()).hexdigest()

    def error(self, bad: BadValueError) -> ConfigError:
        """Return the error for a value that this machine refuses, with its line."""
        from gsched.config.errors import located  # late: few files have a mistake

        return located(bad.keys, bad.message, hint=bad.hint, text=self.text or "", where=self.path)


def load_config(path: str | None) -> Config:
    """Return the configuration of `read_config`."""
    return read_config(path).config


def read_config(path: str | None) -> ConfigFile:
    """Read a configuration; None means the default place, where a missing file means defaults.

    Raises:
        ConfigError: unreadable, not TOML, an unknown key (did you mean), or a value that is wrong;
            the message names the file and, for syntax, the line.
    """
    where = config_path(path)
    try:
        text = _text_of(where)
    except FileNotFoundError:
        if path or environment("GSCHED_CONFIG"):
            raise ConfigError(
                f"{where}: no such file", hint="give another file with --config or $GSCHED_CONFIG"
            ) from None
        return ConfigFile(path=where, config=Config())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{where}: cannot be read: {error}", hint="the file must be UTF-8, and readable for you"
        ) from error
    return ConfigFile(path=where, config=parse_config(text, where=where), text=text)


def parse_config(text: str, *, where: str) -> Config:
    """Return the configuration that ``text`` states; ``where`` names it in errors.

    Raises:
        ConfigError: as `read_config`.
    """
    import tomllib

    from gsched.config.rules import check  # late: most commands read no file

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{where}: {error}", hint="the file must be TOML: see gsched.toml(5)"
        ) from error
    try:
        config = msgspec.convert(plain_numbers(document, Config), Config)
        check(config)
    except BadValueError as bad:
        from gsched.config.errors import located  # late: few files have a mistake

        raise located(bad.keys, bad.message, hint=bad.hint, text=text, where=where) from None
    except msgspec.ValidationError as error:
        from gsched.config.errors import from_validation  # late: as above

        raise from_validation(
            error, root=Config, document=document, text=text, where=where
        ) from None
    return config
