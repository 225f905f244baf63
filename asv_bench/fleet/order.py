"""What a host is told once: the lives, the variants, and the files that these need."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asv_bench.errors import Refused
from asv_bench.git.repository import GitError, Repository, git_environment
from asv_bench.subjects.axis import Variant
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.pinned import Pinned
from asv_bench.subjects.where import Work


@dataclass(frozen=True, slots=True)
class Order:
    """Everything that lives need, as bytes.

    Attributes
    ----------
    variants
        By the names that are asked for: the commit whose files it has, and its label.
    packs
        git packs, which together hold these commits and their files, and nothing of the history.
    object_format
        Of the repository's hashes.
    pinned
        The pinned files.
    """

    work: Work
    variants: dict[str, tuple[str, str]]
    packs: tuple[bytes, ...]
    object_format: str
    pinned: Pinned

    @classmethod
    def of(cls, subject: DeclaredSubject, names: Sequence[str]) -> Order:
        """The order to measure variants of a subject.

        Parameters
        ----------
        names
            Full hashes, or labels.

        Raises
        ------
        Refused
            If the repository lacks files of a commit, or a pinned path is not there.
        """
        variants = {name: subject.variant(name) for name in names}
        return cls(
            work=subject.work,
            variants={name: (one.commit, one.label) for name, one in variants.items()},
            packs=tuple(_packs(list(variants.values()))),
            object_format=Repository(subject.repository).line("rev-parse", "--show-object-format"),
            pinned=subject.pinned,
        )

    def unpack(self, folder: Path) -> Repository:
        """Put the commits into a repository in a folder, and return it.

        Raises
        ------
        GitError
            If git cannot take them.
        """
        bare = folder / "repository.git"
        command = [
            "git",
            "init",
            "-q",
            "--bare",
            f"--object-format={self.object_format}",
            str(bare),
        ]
        made = subprocess.run(command, env=git_environment(), capture_output=True, check=False)
        if made.returncode:
            raise GitError(f"git could not make {bare}: {made.stderr.decode(errors='replace')}")
        repository = Repository(bare)
        for pack in self.packs:
            repository.ask("index-pack", "--stdin", given=pack)
        return repository


def _packs(variants: Sequence[Variant]) -> list[bytes]:
    """A pack for each repository that has commits of these variants."""
    commits: dict[Repository, list[str]] = {}
    for variant in variants:
        commits.setdefault(variant.repository, []).append(variant.commit)
    packs = []
    for repository, wanted in commits.items():
        # Parents are left out: of a long history only the files that are measured travel.
        try:
            objects = repository.ask(
                "rev-list", "--objects", "--no-walk", *dict.fromkeys(wanted), "--"
            )
            packs.append(repository.ask("pack-objects", "--stdout", "-q", given=objects))
        except GitError as error:
            raise Refused(f"the commits cannot be sent to other hosts: {error}") from None
    return packs


def tar_of(root: Path, paths: Sequence[str]) -> bytes:
    """A tar file of files and folders below a folder, without what Python has cached of them."""

    def without_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if "__pycache__" in Path(member.name).parts else member

    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for path in paths:
            tar.add(root / path, path, filter=without_caches)
    return written.getvalue()
