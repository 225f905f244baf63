"""A package that is missing is named in a sentence, before anything is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asv_bench.errors import Refused, missing_sentence, require_packages

ROOT = Path(__file__).resolve().parents[2]
# Some of its commands lock the checkout: one at a time.
pytestmark = pytest.mark.xdist_group("commands in the checkout")

RUNNER = """
import importlib.abc, runpy, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
sys.argv[1:] = {arguments!r}
runpy.run_module("asv_bench", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("typer", "--help"),
        ("rich", "report"),
        ("asv_runner", "compare HEAD HEAD"),
        ("torch", "compare HEAD HEAD"),
        ("ray", "compare HEAD~1 HEAD --fleet auto -- true"),
        *(
            pytest.param(package, command, marks=pytest.mark.thorough)
            for package, command in (
                ("scipy", "changes"),
                ("asv", "bench"),
                ("jinja2", "history HEAD~1..HEAD"),
                ("matplotlib", "lab ladder"),
            )
        ),
    ],
)
def test_a_missing_package_is_a_sentence(package: str, command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER.format(package=package, arguments=command.split())],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    name = "asv" if package == "asv_runner" else package
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2, said
    assert f"package {name}" in said
    assert "install" in said
    assert ("torch's CPU build first" in said) == (package == "torch")
    assert "Traceback" not in said


def test_a_package_is_called_as_it_is_installed_and_what_is_missing_of_our_own_is_a_bug() -> None:
    with pytest.raises(Refused, match="pip install numpy_of_nobody"):
        require_packages("sys", "numpy_of_nobody")
    sentence = missing_sentence(ModuleNotFoundError("x", name="pynvml"))
    assert sentence is not None
    assert "nvidia-ml-py" in sentence
    own = ModuleNotFoundError("x", name="engine.kv.lost")
    for bug in (own, ModuleNotFoundError("no name"), ValueError("x")):
        assert missing_sentence(bug) is None
