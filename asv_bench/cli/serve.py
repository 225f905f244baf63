"""`serve`: hand a model to kvtrail's own server, in place of this process."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib.util import find_spec
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, get_type_hints

import typer

from asv_bench.errors import Refused
from asv_bench.process.environment import users_environment

_ROOT = Path(__file__).resolve().parents[2]


def serve(model: str, api_key: str | None = None, **options: str | int | None) -> None:
    """Serve a model in the shape of OpenAI's API, with kvtrail's own engine."""
    missing = [name for name in ("torch", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise Refused(
            f"serving needs {', '.join(missing)}, which this Python lacks: install "
            f"'kvtrail[serve]' with `{sys.executable} -m pip install 'kvtrail[serve]'`."
        )
    # This kvtrail's engine, whatever else is called engine where the command is typed.
    environment = users_environment()
    paths = [str(_ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if api_key is not None:
        # Not shown by a list of processes.
        environment["KVTRAIL_API_KEY"] = api_key
    given = {name.replace("_", "-"): value for name, value in options.items() if value is not None}
    words = [f"--{name}={value}" for name, value in given.items()]
    command = [sys.executable, "-P", "-m", "engine.serving", *words, "--", model]
    os.execve(sys.executable, command, environment)


def _parameters() -> Iterator[Parameter]:
    """The options of `python -m engine.serving`, from the file that declares them.

    The engine is not imported to show help: it imports torch.
    """
    declared: Any = runpy.run_path(str(_ROOT / "engine/serving/options.py"))["ServerOptions"]
    hints = get_type_hints(declared)
    for one in fields(declared):
        told = typer.Option(one.default, help=one.metadata["help"])
        if one.name == "model":
            told = typer.Argument(help=one.metadata["help"])
        yield Parameter(one.name, Parameter.KEYWORD_ONLY, default=told, annotation=hints[one.name])


serve.__signature__ = Signature([*_parameters()])  # type: ignore[attr-defined]
