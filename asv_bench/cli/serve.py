"""`serve`: hand a model to kvtrail's own server, in place of this process."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from asv_bench.errors import Refused
from asv_bench.process.environment import users_environment

_NEEDED = ("torch", "starlette", "uvicorn")


@dataclass(frozen=True)
class Serving:
    """The options of `python -m engine.serving`, which are declared there.

    The engine is not imported to show help: it imports torch.
    """

    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines ask.")
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000
    api_key: Annotated[
        str | None,
        typer.Option(help="Key that clients must bring (default: $KVTRAIL_API_KEY)."),
    ] = None
    served_model_name: Annotated[
        str | None, typer.Option(help="The model's name for clients (default: MODEL).")
    ] = None
    chat_template: Annotated[
        str | None, typer.Option(help="File of a chat template in place of the model's own.")
    ] = None
    max_inflight_requests: Annotated[
        int,
        typer.Option(help="Answers that may be unfinished at once; more are refused with 429."),
    ] = 2048
    drain_timeout: Annotated[
        int,
        typer.Option(help="Seconds that a server which is told to end waits for its answers."),
    ] = 60
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto"
    dtype: Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")] = "auto"
    max_model_len: Annotated[int | None, typer.Option(help="Longest sequence, in tokens.")] = None
    max_batch_size: Annotated[int, typer.Option(help="Sequences that run at once.")] = 64
    block_size: Annotated[int, typer.Option(help="Tokens of a KV block.")] = 64
    num_kv_blocks: Annotated[
        int | None, typer.Option(help="Blocks of the KV cache (default: by memory).")
    ] = None
    prefill_max_tokens: Annotated[
        int | None, typer.Option(help="Prompt tokens of a step at most (default: 8192).")
    ] = None
    steps_in_flight: Annotated[
        int | None,
        typer.Option(
            help="Launches whose tokens the host need not have seen (default: by device)."
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="Seeds the answers of requests that bring no seed.")] = 0
    threads: Annotated[
        int | None, typer.Option(help="Threads on a CPU (default: half of the cores).")
    ] = None

    def words(self) -> list[str]:
        """The options as they stand on a command line."""
        given = ((one.name, getattr(self, one.name)) for one in fields(self))
        return [f"--{name.replace('_', '-')}={value}" for name, value in given if value is not None]


def serve(
    model: Annotated[str, typer.Argument(help="Hub id, local directory or random:NAME.")],
    *,
    options: Serving,
) -> None:
    """Serve a model in the shape of OpenAI's API, with kvtrail's own engine."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise Refused(
            f"serving needs {', '.join(missing)}, which this Python lacks: install "
            f"'kvtrail[serve]' with `{sys.executable} -m pip install 'kvtrail[serve]'`."
        )
    # This kvtrail's engine, whatever else is called engine where the command is typed.
    root = str(Path(__file__).resolve().parents[2])
    environment = users_environment()
    paths = [root, environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    key = options.api_key
    if key is not None:
        # Not shown by a list of processes.
        environment["KVTRAIL_API_KEY"] = key
    words = [word for word in options.words() if not word.startswith("--api-key=")]
    command = [sys.executable, "-P", "-m", "engine.serving", *words, "--", model]
    os.execve(sys.executable, command, environment)
