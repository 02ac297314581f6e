"""Which gsched this is."""

from importlib.metadata import PackageNotFoundError, version

NOT_INSTALLED = "not installed"


def own_version() -> str:
    """Return the version of the installed package, or ``not installed`` in a bare source tree."""
    try:
        return version("gsched")
    except PackageNotFoundError:
        return NOT_INSTALLED
