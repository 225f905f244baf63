"""What runs as the setup of an asv suite: an environment, and the commit in it, as asv makes them.

Started as a script, with asv beside it. What it is told is JSON, its one argument. Command lines go
through asv's own reader and through no shell.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from asv.util import UserError, interpolate_command


def main() -> None:
    """Do what the command line says; exit with 1 and a sentence where something fails."""
    told = json.loads(sys.argv[1])
    out = Path(os.environ["KVTRAIL_OUT"])
    environment, wheels = out / "env", out / "wheels"
    wheels.mkdir()
    places = {
        "build_cache_dir": str(wheels),
        "build_dir": str(Path(os.environ["KVTRAIL_TREE"]) / told["subdir"]),
        "commit": os.environ["KVTRAIL_LABEL"],
        "conf_dir": os.environ["KVTRAIL_SUBJECT"],
        "env_dir": str(environment),
        "env_name": "env",
        "env_type": "virtualenv",
        "project": os.environ["ASV_PROJECT"],
    }
    # What asv leaves out: other packages, and pip's own place for those of a user.
    without = {"PYTHONPATH", *told["without"]}
    variables = {
        **{name: value for name, value in os.environ.items() if name not in without},
        **{f"ASV_{name.upper()}": value for name, value in places.items()},
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PIP_USER": "false",
    }

    def run(
        words: Sequence[str], folder: str, codes: Collection[int] | None, more: dict[str, str]
    ) -> None:
        line = shlex.join(words)
        try:
            code = subprocess.run(
                words, cwd=folder, env=variables | more, timeout=told["timeout_s"], check=False
            ).returncode
        except subprocess.TimeoutExpired:
            sys.exit(f"`{line}` did not end within {told['timeout_s']:g} s")
        except OSError as error:
            sys.exit(f"`{line}` cannot be started: {error}")
        if codes is not None and code not in codes:
            sys.exit(f"`{line}` ended with exit code {code}")

    # As asv has it, which needs no ensurepip of an interpreter.
    virtualenv = (sys.executable, "-m", "virtualenv", "-q", "--setuptools=bundle")
    run((*virtualenv, "-p", told["interpreter"], str(environment)), str(out), {0}, {})
    if told["requirements"]:
        pip = ("python", "-m", "pip", "install", "-q", *told["requirements"])
        run(pip, os.environ["KVTRAIL_SUBJECT"], {0}, {})
    for line in told["commands"]:
        built = [str(path) for path in wheels.glob("*.whl")]
        if "{wheel_file}" in line and len(built) != 1:
            sys.exit(f"{len(built)} wheels were built, and {line!r} wants one: {' '.join(built)}")
        places["wheel_file"] = " ".join(built)
        try:
            words, more, codes, folder = interpolate_command(line, places)
        except UserError as error:
            sys.exit(str(error))
        run(words, folder or places["build_dir"], codes, more)


if __name__ == "__main__":
    main()
