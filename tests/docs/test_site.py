"""The documentation site is built without a warning, and its links lead somewhere."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("sphinx", "furo", "myst_parser")


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors.add(values.get("id") or "")
        self.links.add(values.get("href" if tag == "a" else "src") or "")


def broken(site: Path) -> Iterator[str]:
    """Yield the links of all pages that lead nowhere; those to other hosts are not followed."""
    pages = {path.resolve(): Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                yield f"{path.relative_to(site)}: {link}: no such file"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors | {""}:
                yield f"{path.relative_to(site)}: {link}: no such anchor"


@pytest.mark.timeout(600)
def test_the_site_is_built_without_a_warning_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; the extra site has them")

    built = subprocess.run(
        [ROOT / "scripts" / "site", tmp_path / "site"],
        env={"PATH": "/usr/bin:/bin", "GSCHED_SITE_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (built.returncode, built.stderr) == (0, "")
    assert list(broken((tmp_path / "site").resolve())) == []
    page = (tmp_path / "site" / "man" / "gsub.1.html").read_text("utf-8")
    assert 'href="gstat.1.html"' in page, "manual pages link to each other"
