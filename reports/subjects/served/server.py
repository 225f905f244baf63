"""Serve a built-in model at $KVTRAIL_PORT: with the engine of a commit, or with that of a label.

Of labels all engines load one checkpoint, which is written to `model` beside this file where it is
not there yet. vLLM is run by the interpreter $VLLM_PYTHON, or `python`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

CANNOT_BE_MEASURED = 125
LABELS = ("kvtrail", "vllm")


def checkpoint(model: str, dtype: str) -> Path:
    """The folder of a model with seeded random weights, in Hugging Face's format."""
    folder = Path(__file__).resolve().parent / "model" / f"{model}-{dtype}"
    if not folder.is_dir():
        sys.path.insert(0, os.environ["KVTRAIL_TREE"])
        from asv_bench.peers.model import put_on_disk
        from asv_bench.process.machine import chosen_device

        # Whoever ends this leaves no half of it.
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        put_on_disk(f"random:{model}", dtype, chosen_device("auto"), str(partial), {})
        partial.rename(folder)
    return folder


def main() -> None:
    """Become the server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a built-in model, without random:")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--length", required=True, help="tokens of a sequence at most")
    parser.add_argument("--batch", required=True, help="sequences at once at most")
    asked, own = parser.parse_known_args()
    label, port = os.environ["KVTRAIL_LABEL"], os.environ["KVTRAIL_PORT"]
    named = label in LABELS
    model = str(checkpoint(asked.model, asked.dtype)) if named else f"random:{asked.model}"
    same = ["--dtype", asked.dtype, "--max-model-len", asked.length, "--port", port]
    same += ["--served-model-name", "served"]
    if label == "vllm":
        python = os.environ.get("VLLM_PYTHON", "python")
        # Not from here: it would take the `kernels` of this repository for another package.
        os.chdir("/")
        os.environ.update(HF_HUB_OFFLINE="1", DO_NOT_TRACK="1")
        words = ["-P", "-m", "vllm.entrypoints.openai.api_server", "--model", model, *same]
        words += ["--host", "127.0.0.1", "--max-num-seqs", asked.batch]
    else:
        if not Path("engine", "serving").is_dir():
            print("this commit has no server", file=sys.stderr)
            sys.exit(CANNOT_BE_MEASURED)
        python = "python"
        words = ["-m", "engine.serving", model, *same, "--max-batch-size", asked.batch, *own]
    os.execvp(python, [python, *words])


if __name__ == "__main__":
    main()
