"""What pyproject.toml cannot state: the wheel has the manual pages, which are built from man/.

So `man gsub` finds them beside the programs of a virtual environment.
"""

from pathlib import Path

from docutils.core import publish_file
from setuptools import setup

TARGET = Path("build/man")


def manual_pages() -> list[tuple[str, list[str]]]:
    """Build the manual pages; return the directories of the environment in which they belong."""
    TARGET.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[str]] = {}
    for source in sorted(Path("man").glob("*.[1-8].rst")):
        page = TARGET / source.stem
        publish_file(
            source_path=str(source),
            destination_path=str(page),
            writer="manpage",
            settings_overrides={"report_level": 2},
        )
        found.setdefault(f"share/man/man{page.suffix[1:]}", []).append(str(page))
    return sorted(found.items())


setup(data_files=manual_pages())
