"""What pyproject.toml cannot state: the wheel has the manual pages, which are built from man/.

So `man gsub` finds them beside the programs of a virtual environment.
"""

import sys
from pathlib import Path

from docutils.core import publish_string
from setuptools import setup

TARGET = Path("build/man")
#: What pip runs first, to read the package's name and requirements.
METADATA = frozenset({"egg_info", "dist_info"})


def manual_pages() -> list[tuple[str, list[str]]]:
    """Build the manual pages; return the directories of the environment in which they belong."""
    TARGET.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[str]] = {}
    for source in sorted(Path("man").glob("*.[1-8].rst")):
        page = TARGET / source.stem
        text = publish_string(
            source.read_text("utf-8"),
            source_path=str(source),
            writer="manpage",
            settings_overrides={"report_level": 2, "output_encoding": "unicode"},
        )
        # A narrow column cannot be filled to both margins: man warns of each line in it.
        page.write_text(
            text.replace("\n.TS\n", "\n.ad l\n.TS\n").replace("\n.TE\n", "\n.TE\n.ad b\n"), "utf-8"
        )
        found.setdefault(f"share/man/man{page.suffix[1:]}", []).append(str(page))
    return sorted(found.items())


setup(data_files=manual_pages() if METADATA.isdisjoint(sys.argv[1:2]) else [])
