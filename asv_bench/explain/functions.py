"""Functions of a plain Python life: how often each was called, and how long it took by itself."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from asv_bench.errors import MeasurementFailed
from asv_bench.explain.trace import TraceSummary, WorkTime
from asv_bench.measure.figures import Figures
from asv_bench.measure.life import CommandLife, Life, Setting
from asv_bench.measure.lives import TRACE, Lives
from asv_bench.output.stored_json import Count, UnreadableFile, read_stored

_HOOK = Path(__file__).with_name("python_hook.py")
_PYTHONPATH = re.compile(r"\bPYTHONPATH=")


class _Profile(msgspec.Struct):
    """What `python_hook` leaves of a process."""

    is_disturbed: bool
    waits: bool
    functions: list[tuple[str, str, int, Count]]  # name, file, calls, microseconds


@dataclass
class FunctionProfiler(Life):
    """Runs lives of a command in which each Python leaves its profile, and reads these.

    A life of each end is tried first. Where the machine is busy, or several threads or processes
    wait for each other, what counts is the time that they work; else that which goes by.
    """

    lives: Lives
    command: CommandLife
    ends: Sequence[str]
    _is_of_work: bool | None = None

    def __call__(self, end: str, folder: Path) -> list[TraceSummary]:
        """What a life of an end spends its time in; its files go into a folder.

        Raises MeasurementFailed where no Python runs that can be profiled, or the life fails.
        """
        if self._is_of_work is None:
            with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
                tried = [
                    self._profiles(one, Path(scratch, str(number)))
                    for number, one in enumerate(self.ends)
                ]
            every = [process for one in tried for process in one]
            is_disturbed = any(one.is_disturbed for one in every)
            self._is_of_work = len(every) > len(tried) or (
                is_disturbed and not any(one.waits for one in every)
            )
        calls, spent = Counter[tuple[str, str]](), defaultdict[tuple[str, str], float](float)
        for profile in self._profiles(end, folder):
            for name, file, count, us in profile.functions:
                calls[name, file] += count
                spent[name, file] += us
        work = [WorkTime(name, calls[name, file], us, file) for (name, file), us in spent.items()]
        return [TraceSummary(work, False, sum(spent.values()), 0.0, is_profile=True)]

    def _profiles(self, end: str, folder: Path) -> list[_Profile]:
        self.lives.trace(self, end, folder)
        if not (files := sorted(folder.glob("*.json"))):
            raise MeasurementFailed("no Python ran that could be profiled.")
        try:
            return [read_stored(file, "a profile", _Profile) for file in files]
        except UnreadableFile as error:
            raise MeasurementFailed(str(error)) from None

    def live(self, setting: Setting, metrics: Collection[str]) -> Figures:
        folder = setting.variables[TRACE]
        Path(folder).mkdir()
        shutil.copy(_HOOK, Path(folder, "sitecustomize.py"))
        if self._is_of_work:
            Path(folder, "work").touch()
        given = setting.variables.get("PYTHONPATH")
        paths = os.pathsep.join(filter(None, [folder, given]))
        # Sets, and what depends on their order, do the same each time.
        told = {"PYTHONHASHSEED": "0", **setting.variables, "PYTHONPATH": paths}
        line, put_first = self.command.command, partial(_PYTHONPATH.sub, f"PYTHONPATH={folder}:")
        line = put_first(line) if isinstance(line, str) else tuple(map(put_first, line))
        command = replace(self.command, command=line, metrics={}, preload=())
        return command.live(replace(setting, variables=told), metrics)
