"""What release.yml does of its own: check the version, cut the notes, write the package's page.

Only the standard library and the version: it runs with whatever Python a runner has.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from asv_bench import __version__  # noqa: E402

FROM_CLONE = "pipx install .             # in this clone"
"""How the README installs, in a clone."""
PAGES = {
    "Source": "",
    "Documentation": f"/blob/v{__version__}/docs/index.md",
    "Changelog": f"/blob/v{__version__}/CHANGELOG.md",
    "Issues": "/issues",
}
"""What the package's page links, below the address of the repository."""


def section() -> tuple[str, str]:
    """The date of this version, and what the changelog says of it; else SystemExit."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    found = re.search(
        rf"^## {re.escape(__version__)} - (\d{{4}}-\d\d-\d\d)\n(.*?)(?=^## |\Z)", text, re.M | re.S
    )
    if found is None:
        sys.exit(f"CHANGELOG.md has no section with a date for {__version__}: rename Unreleased.")
    return found[1], found[2].strip()


def check(tag: str) -> None:
    """Raise SystemExit unless tag, code, changelog and citation name one version."""
    if tag != f"v{__version__}":
        sys.exit(
            f"the tag is {tag}, and asv_bench/__init__.py says {__version__}: set it, tag anew."
        )
    date, _ = section()
    cited = (ROOT / "CITATION.cff").read_text("utf-8").splitlines()
    for line in (f"version: {__version__}", f"date-released: {date}"):
        if line not in cited:
            sys.exit(f"CITATION.cff must say `{line}`.")


def notes() -> None:
    """Print what the changelog says of this version."""
    print(section()[1])


def page(address: str) -> None:
    """Make README.md and pyproject.toml those of a package's page.

    Files are named by where they lie in the repository at this address, as this version has them.
    """

    def absolute(found: re.Match[str]) -> str:
        picture, text, path = found.groups()
        return f"{picture}[{text}]({address}/{'raw' if picture else 'blob'}/v{__version__}/{path})"

    readme, project = ROOT / "README.md", ROOT / "pyproject.toml"
    text = readme.read_text("utf-8").replace(FROM_CLONE, "pipx install kvtrail")
    readme.write_text(re.sub(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)", absolute, text), "utf-8")
    urls = "".join(f'{name} = "{address}{below}"\n' for name, below in PAGES.items())
    project.write_text(f"{project.read_text('utf-8')}\n[project.urls]\n{urls}", "utf-8")


STEPS: dict[str, Callable[..., None]] = {"check": check, "notes": notes, "page": page}


def main(arguments: Sequence[str]) -> None:
    """Run one of the steps."""
    STEPS[arguments[0]](*arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
