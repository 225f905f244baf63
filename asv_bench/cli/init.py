"""`init`: begin a `kvtrail.toml`."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

from asv_bench.errors import Refused
from asv_bench.git.repository import Repository
from asv_bench.output.console import make_console
from asv_bench.output.record import write_text
from asv_bench.process.gpu import visible_gpus
from asv_bench.subjects.axis import repository_around
from asv_bench.subjects.choose import suites_in
from asv_bench.subjects.presets import BUILDS, PRESETS
from asv_bench.subjects.subject_file import FILE_NAME, read_tables

_BENCHMARK = re.compile(
    r"(?!(?:.*/)?(?:[_.]|conftest|setup|test_))"
    r"(?:[^/]*bench[^/]*|bench[^/]*/[^/]+)(?<!_test)\.(?:py|sh)"
)
"""Scripts whose names, or folders, say that they measure."""


def init() -> None:
    """Write a commented kvtrail.toml for the repository around the current folder.

    What it measures is guessed from the files that lie there; read it, and edit the command if the
    guess is wrong. No other file is touched.
    """
    root = repository_around(Path.cwd())
    if root is None:
        raise Refused(f"{Path.cwd()} is in no git repository; run init in the one to measure.")
    path = root / FILE_NAME
    if path.exists():
        raise Refused(f"{path} exists already; edit it, or move it away first.")
    write_text(path, _beginning(root))
    subject = read_tables(path)[0].subject
    before = f", after `{subject.setup}`" if subject.setup else ""
    console = make_console()
    console.print(f"wrote {os.path.relpath(path)}")
    console.print(f"each measurement runs `{subject.measure}`{before}")
    for suite in suites_in(root):
        word = shlex.quote(os.path.relpath(suite))
        console.print(f"an asv suite lies here too: --subject {word} measures it")
    console.print(
        "next: read the file, edit the command if the guess is wrong, then "
        "`kvtrail compare HEAD~1 HEAD`"
    )


def _beginning(root: Path) -> str:
    """The text of a `kvtrail.toml` that measures what a repository seems to measure itself."""
    setup = next((BUILDS[name] for name in BUILDS if (root / name).is_file()), "")
    preset, measure, pinned = _guess(root)
    suites = [shlex.quote(str(one.relative_to(root))) for one in suites_in(root)]
    template = Path(__file__).with_name("kvtrail.toml.template")
    return template.read_text("utf-8").format(
        suites="".join(f"# --subject {one} measures the asv suite in it.\n" for one in suites),
        name=_in_toml(re.sub(r"[^\w.-]+", "-", root.name).strip(".-") or "subject"),
        setup=f"setup = {_in_toml(setup)}" if setup else '# setup = "make"',
        measure=_in_toml(measure),
        devices="devices = 1" if visible_gpus() else "# devices = 1",
        env='env = { PYTHONPATH = "$KVTRAIL_OUT" }'
        if setup == BUILDS["pyproject.toml"]
        else '# env = { OMP_NUM_THREADS = "1" }',
        preset=f"preset = {_in_toml(preset)}" if preset else '# preset = "pytest-benchmark"',
        pinned=f"pinned = [{', '.join(map(_in_toml, pinned))}]"
        if pinned
        else '# pinned = ["bench.py"]',
    )


def _guess(root: Path) -> tuple[str, str, list[str]]:
    """The preset and the command by which a repository seems to measure, and the scripts of it.

    They are of the files that git knows or would add, but for links and names of odd characters.
    """
    files = [
        path
        for path in Repository(root).names("ls-files", "-z", "-co", "--exclude-standard")
        if path.isprintable() and (root / path).is_file() and not (root / path).is_symlink()
    ]
    tests = [path for path in files if re.search(r"(bench|test|perf)[^/]*\.py\Z", path)]
    texts = {path: (root / path).read_text("utf-8", errors="replace") for path in tests}
    for name, preset in PRESETS.items():
        found = [one for one in texts if preset.holds and re.search(preset.holds, texts[one])]
        if found:
            scripts = found if preset.takes_many else found[:1]
            return name, preset.line.format(shlex.join(scripts)), scripts
    # Scripts in a folder may be the benchmarks of an asv suite.
    deepest = 0 if suites_in(root) else 1
    found = [path for path in files if _BENCHMARK.fullmatch(path) and path.count("/") <= deepest]
    if not found:
        return "", "python -c 'sum(range(10**7))'", []
    script = min(found, key=lambda path: (path.count("/"), "bench" not in Path(path).name, path))
    program = "python" if script.endswith(".py") else "sh"
    return "", shlex.join([program, f"./{script}" if script[0] == "-" else script]), [script]


def _in_toml(text: str) -> str:
    """A string of TOML, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
