"""The command line of the server."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.config import EngineConfig


def _option(help_text: str, default: Any = None, kind: type = str) -> Any:
    return field(default=default, metadata={"help": help_text, "kind": kind})


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What a server is started with: the model, its own options, and those of the engine.

    `kvtrail serve` reads them from this file alone, without the engine.
    """

    model: str = field(metadata={"help": "Hub id, local directory or random:NAME."})
    host: str = _option("Address to listen on; 0.0.0.0 lets other machines ask.", "127.0.0.1")
    port: int = _option("Port to listen on; 0 takes a free one.", 8000, int)
    api_key: str | None = _option("Key that clients must bring (default: $KVTRAIL_API_KEY).")
    served_model_name: str | None = _option("The model's name for clients (default: MODEL).")
    chat_template: str | None = _option("File of a chat template in place of the model's own.")
    max_inflight_requests: int = _option(
        "Answers that may be unfinished at once; more are refused with 429.", 2048, int
    )
    drain_timeout: int = _option(
        "Seconds that a server which is told to end waits for its answers.", 60, int
    )
    device: str = _option("auto, cpu, cuda or cuda:N.", "auto")
    dtype: str = _option("auto, float32, float16 or bfloat16.", "auto")
    max_model_len: int | None = _option("Longest sequence, in tokens.", kind=int)
    max_batch_size: int = _option("Sequences that run at once.", 64, int)
    block_size: int = _option("Tokens of a KV block.", 64, int)
    num_kv_blocks: int | None = _option("Blocks of the KV cache (default: by memory).", kind=int)
    prefill_max_tokens: int | None = _option(
        "Prompt tokens of a step at most (default: 8192).", kind=int
    )
    mixed_prefill_tokens: int | None = _option(
        "Tokens of a launch that prompts share with a decode step; 0: none (default: 320 with "
        "8 GB of weights or more on a GPU, else 0).",
        kind=int,
    )
    steps_in_flight: int | None = _option(
        "Launches whose tokens the host need not have seen (default: by device).", kind=int
    )
    seed: int = _option("Seeds the answers of requests that bring no seed.", 0, int)
    threads: int | None = _option("Threads on a CPU (default: half of the cores).", kind=int)
    tensor_parallel_size: int = _option("GPUs that have a part of each layer.", 1, int)
    quantization: str | None = _option(
        "fp8 rounds weights, fp8-dynamic all that they multiply, too."
    )
    kv_cache_dtype: str = _option("fp8 keeps keys and values in eight bits.", "auto")
    speculative: str | None = _option(
        "prompt-lookup drafts tokens that followed the last ones before (default: none)."
    )

    @property
    def name(self) -> str:
        """The model's name for clients."""
        return self.served_model_name or self.model

    def check(self) -> None:
        """Raises ConfigError where an option of the server's own is outside its range."""
        from engine.errors import ConfigError

        if not 0 <= self.port < 2**16:
            raise ConfigError(f"port is {self.port}; it must be 0 (any) to {2**16 - 1}.")
        if self.drain_timeout < 0:
            raise ConfigError(f"drain_timeout is {self.drain_timeout}; it must be 0 or more.")

    def engine_config(self) -> EngineConfig:
        """Raises ConfigError where an option is outside its range."""
        from engine.config import EngineConfig

        names = {one.name for one in fields(EngineConfig)} & {one.name for one in fields(self)}
        return EngineConfig(**{name: getattr(self, name) for name in names})


def read_options(arguments: Sequence[str] | None = None) -> ServerOptions:
    """The options of a command line; ends with a sentence and exit code 2 where they are wrong."""
    parser = make_parser()
    given = vars(parser.parse_args(arguments))
    # Not shown by a list of processes.
    given["api_key"] = given["api_key"] or os.environ.get("KVTRAIL_API_KEY") or None
    return ServerOptions(**given)


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m engine.serving",
        description="Serve a model in the shape of OpenAI's API.",
        allow_abbrev=False,
    )
    model, *options = fields(ServerOptions)
    parser.add_argument("model", metavar="MODEL", help=model.metadata["help"])
    for one in options:
        help_text = one.metadata["help"]
        if one.default is not None:
            help_text += f" (default: {one.default})"
        parser.add_argument(
            f"--{one.name.replace('_', '-')}",
            default=one.default,
            type=one.metadata["kind"],
            metavar="",
            help=help_text,
        )
    return parser
