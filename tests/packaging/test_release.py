"""The steps of release.yml: what they demand, the page that they write, and the tag that moves."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from toy_project import git

from asv_bench import __version__

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RELEASE = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))
ADDRESS = "https://forge.example/somebody/kvtrail"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the steps read, without the rest."""
    for name in (".ci", "asv_bench"):
        (tmp_path / name).mkdir()
    names = (".ci/release.py", "asv_bench/__init__.py", "CHANGELOG.md", "CITATION.cff")
    for name in (*names, "README.md", "pyproject.toml"):
        shutil.copy2(ROOT / name, tmp_path / name)
    return tmp_path


def step(checkout: Path, *words: str) -> tuple[int, str]:
    """The exit code of a step, and what it printed; with the standard library alone."""
    command = [sys.executable, "-S", str(checkout / ".ci" / "release.py"), *words]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def test_tag_code_changelog_and_citation_name_one_version(checkout: Path) -> None:
    tag = f"v{__version__}"
    assert step(checkout, "check", tag) == (0, "")
    code, said = step(checkout, "check", "v99.0.0")
    assert (code, "the tag is v99.0.0" in said) == (1, True)
    cited = checkout / "CITATION.cff"
    replace_in(cited, f"version: {__version__}", "version: 99.0.0")
    assert step(checkout, "check", tag) == (1, f"CITATION.cff must say `version: {__version__}`.\n")
    replace_in(cited, "version: 99.0.0", f"version: {__version__}")
    replace_in(cited, "date-released: 20", "date-released: 19")
    assert "CITATION.cff must say `date-released: 20" in step(checkout, "check", tag)[1]
    replace_in(checkout / "CHANGELOG.md", f"## {__version__} - ", "## 99.0.0 - ")
    code, said = step(checkout, "check", tag)
    assert (code, "no section with a date" in said) == (1, True)


def test_the_notes_are_the_section_of_the_version(checkout: Path) -> None:
    heading = f"## {__version__} - 2030-01-02\n\n### Added\n\n- This.\n\n"
    log = (
        "# Changelog\n\n## Unreleased\n\n- Not this.\n\n"
        + heading
        + "## 0.0.1 - 2020-01-01\n\n- Nor."
    )
    (checkout / "CHANGELOG.md").write_text(log)
    assert step(checkout, "notes") == (0, "### Added\n\n- This.\n")


def test_the_page_of_the_package_leads_somewhere(checkout: Path) -> None:
    """A page of an index shows no file beside the README."""
    assert step(checkout, "page", ADDRESS) == (0, "")
    page = (checkout / "README.md").read_text("utf-8")
    targets = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", page)
    assert len(targets) > 20
    for picture, target in targets:
        assert re.match("https?:|#", target)
        if target.startswith(ADDRESS):
            kind, version, path = target.removeprefix(f"{ADDRESS}/").split("/", 2)
            assert (kind, version) == ("raw" if picture else "blob", f"v{__version__}")
            assert (ROOT / path.partition("#")[0]).exists()
    assert "(docs/" not in page
    assert "\npipx install kvtrail\n" in page
    assert "in this clone" not in page
    project = tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["urls"]["Source"] == ADDRESS
    assert project["urls"]["Issues"] == f"{ADDRESS}/issues"
    paths = [url.partition(f"/v{__version__}/")[2] for url in project["urls"].values()]
    assert [path for path in paths if path] == ["docs/index.md", "CHANGELOG.md"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_read_and_write_only_where_they_say_so(path: Path) -> None:
    flow = yaml.safe_load(path.read_text("utf-8"))
    assert flow["permissions"] == {"contents": "read"}
    for job in flow["jobs"].values():
        for one in job["steps"]:
            assert ("run" in one) != ("uses" in one)
            # Names of tags and branches are words of a shell only as variables.
            assert "github." not in re.sub(r"\$\{GITHUB_\w+", "", one.get("run", ""))
            if "run" in one:
                syntax = ["bash", "-n", "-c", re.sub(r"\$\{\{.*?\}\}", "x", one["run"])]
                assert subprocess.run(syntax, check=False).returncode == 0


def steps_of(job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = RELEASE["jobs"][job]["steps"]
    return found


def test_only_a_tag_publishes_and_what_builds_cannot() -> None:
    jobs = RELEASE["jobs"]
    assert "permissions" not in jobs["build"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["if"] == "github.event_name == 'push'"
    assert (jobs["publish"]["needs"], jobs["announce"]["needs"]) == ("build", "publish")
    assert not [one for one in steps_of("publish") if "run" in one]
    # YAML reads the key `on` as true.
    assert RELEASE[True]["push"] == {"tags": ["v[0-9]+.[0-9]+.[0-9]+"]}
    called = [
        word
        for one in steps_of("build")
        for word in re.findall(r"\.ci/release\.py (\w+)", one.get("run", ""))
    ]
    assert called == ["check", "notes", "page"]


@pytest.mark.parametrize(("tag", "moved"), [("v1.10.0", "v1.10.0"), ("v1.9.1", "v1.10.0")])
def test_the_tag_of_a_major_version_moves_to_its_newest_release(
    tmp_path: Path, tag: str, moved: str
) -> None:
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    git(origin, "init", "--quiet", "--initial-branch=main")
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for name in ("v1.9.0", "v1.10.0", "v1.9.1", "v1.11.0rc1", "v2.0.0"):
        git(origin, *author, "commit", "--quiet", "--allow-empty", "-m", name)
        git(origin, *author, "tag", "-a", name, "-m", name)
    git(origin, "tag", "v1", "v1.9.0^{commit}")
    git(tmp_path, "clone", "--quiet", str(origin), str(clone))
    [script] = (one["run"] for one in steps_of("announce") if "force" in one.get("run", ""))
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=clone,
        env={"PATH": "/usr/bin:/bin", "GITHUB_REF_NAME": tag},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert git(origin, "rev-parse", "v1") == git(origin, "rev-parse", f"{moved}^{{commit}}")
    assert git(origin, "tag").split() == [
        "v1",
        "v1.10.0",
        "v1.11.0rc1",
        "v1.9.0",
        "v1.9.1",
        "v2.0.0",
    ]
