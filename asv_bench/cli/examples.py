"""An example or two of each command, for its help and for the reference."""

from __future__ import annotations

EXAMPLES = {
    "compare": (
        "compare v1.2 HEAD -- python bench.py",
        "compare HEAD .  # by kvtrail.toml: the working tree against its commit",
    ),
    "bisect": (
        "bisect v1.2 HEAD -- python bench.py",
        "bisect 4f0c1d2 --files  # which files of one commit",
    ),
    "explain": ("explain HEAD~1 HEAD", "explain v1.2 HEAD --traces 3"),
    "fixed": ("fixed 4f0c1d2", "fixed 4f0c1d2^ 4f0c1d2 . -- python bench.py"),
    "swap": ("swap v1.2 HEAD torch-2.10 torch-2.11",),
    "calibrate": ("calibrate -- python bench.py", "calibrate --minutes 30 --planted 5,10"),
    "init": ("init",),
    "history": ("history v1.2..HEAD", "history v1.2..HEAD --steps 20 --rounds 5"),
    "changes": ("changes", "changes --no-confirm --metric wall_s"),
    "bench": ("bench --quick", "bench -b scheduler --rounds 5"),
    "report": ("report", "report --results perf"),
    "run": ("run {} --quick", "run {} --batch 8 --json run.json"),
    "run headline": ("run headline --quick --output figures.json",),
    "scheduler": ("scheduler --quick",),
    "streaming": ("streaming --quick",),
    "headline": ("headline --quick --output figures.json",),
    "peers": ("peers --quick --peer transformers",),
    "profile": ("profile --quick",),
    "roofline": ("lab roofline --output roofline.json",),
    "ladder": ("lab ladder --quick",),
}
"""What follows `kvtrail`, by the command's name. Behind a # stands what it does."""


def examples_text(command: str, name: str | None = None) -> str:
    """The examples of a command as the end of its help; `name` is that of one of a group."""
    lines = [f"kvtrail {line.format(name)}" for line in EXAMPLES[command]]
    return "\n\n".join(["Examples:" if len(lines) > 1 else "Example:", *lines])
