"""A repository that is not kvtrail: a shell script that sleeps, slower in its second commit."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SCRIPT = "bench.sh"
COMMAND = ("sh", SCRIPT)
SETTINGS = (
    *("-c", "user.name=Test", "-c", "user.email=test@example.invalid"),
    # A commit would start a process that finds nothing to tidy up.
    *("-c", "maintenance.auto=false"),
)


@dataclass(frozen=True)
class ToyRepository:
    """The repository, with files that its owner has not committed."""

    root: Path

    @classmethod
    def make(cls, root: Path) -> ToyRepository:
        """HEAD~1 sleeps 5 ms, HEAD 20 ms."""
        root.mkdir()
        toy = cls(root)
        scripts = [f"sleep {seconds}" for seconds in ("0.005", "0.020")]
        toy.begin(SCRIPT, *((f"{script}\n", script) for script in scripts))
        (root / "notes.txt").write_text("not committed")
        return toy

    def commit(self, script: str, message: str) -> str:
        """Commit another script; its hash."""
        return self.change(message, {SCRIPT: f"{script}\n"})

    def change(self, message: str, files: Mapping[str, str] | None = None) -> str:
        """Commit these files, where there are any, with all that was changed; the hash."""
        for name, text in (files or {}).items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        self.git("add", "--all", "--", *(files or ["."]))
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def begin(self, file: str, *changes: tuple[str, str]) -> list[str]:
        """Make it a repository whose commits give a file these texts, each with its message.

        Their hashes. A few processes do it, however many the commits.
        """
        stream = []
        for text, message in changes:
            stream += ["commit refs/heads/main", "committer Test <test@example.invalid> now"]
            stream += [_data(message), f"M 100644 inline {file}", _data(text)]
        self.git("init", "-q", "-b", "main", "--template=")
        self.git("fast-import", "--quiet", "--date-format=now", given="\n".join(stream))
        self.git("reset", "-q", "--hard")
        return self.git("rev-list", "--reverse", "HEAD").split()

    def git(self, *arguments: str, given: str | None = None) -> str:
        command = ["git", *SETTINGS, "-C", str(self.root), *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True, input=given)
        return done.stdout.strip()

    def state(self) -> list[str]:
        """All that a measurement must leave as it is: files, and with git's own the references,
        the index and the list of worktrees."""
        return sorted(
            f"{path.relative_to(self.root)} {path.stat().st_mtime_ns}"
            for path in self.root.rglob("*")
            if path.is_file()
        )


def _data(text: str) -> str:
    return f"data {len(text.encode())}\n{text}"
