"""What runs inside a life of an asv suite: each benchmark in a process of its own, by asv's runner.

Started as a script in the environment of a commit, which may be of an older Python and has nothing
of the ruler. asv_runner lies beside it, where $PYTHONPATH says.

`list SUITE FILE [MODULE...]` writes what asv knows of the benchmarks, of some modules or of all,
and which modules could not be imported.
`run SUITE FOLDER` runs those that `wanted.json` in the folder names. It leaves their samples in
$KVTRAIL_RESULT, and in `reasons.json` why others have none.

Where $KVTRAIL_DELAY_S is set, what a `time_` benchmark times takes so many seconds more.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import math
import os
import pkgutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from asv_runner import discovery, run, setup_cache
from asv_runner._aux import posix_redirect_output, update_sys_path

DELAY = "KVTRAIL_DELAY_S"


def main() -> None:
    """Do what the command line says."""
    # What a benchmark imports or starts is the commit's own.
    own = os.environ.pop("PYTHONPATH")
    sys.path[:] = [path for path in sys.path if path != own]
    verb, suite, place, *modules = sys.argv[1:]
    update_sys_path(suite)
    if verb == "list":
        listed, unknown = _listed(suite, modules)
        Path(place).write_text(json.dumps({"benchmarks": listed, "unknown": unknown}))
        return
    if DELAY in os.environ:
        _plant(float(os.environ[DELAY]))
    SuiteRun(suite, Path(place)).run()


def _listed(suite: str, modules: Sequence[str]) -> tuple[list[Any], dict[str, str]]:
    """asv's descriptions of benchmarks, and why modules have none."""
    package = os.path.basename(suite)
    names = [f"{package}.{module}" if module else package for module in modules]
    listed: list[Any] = []
    unknown: dict[str, str] = {}
    for name in names or _modules(package):
        found = io.StringIO()
        try:
            # asv's own way to list imports every module, and ends at the first that cannot be.
            module = importlib.import_module(name)
            discovery.disc_modules = lambda *_, module=module, **__: [module]
            discovery.list_benchmarks(suite, found)
        except BaseException as error:
            traceback.print_exc()
            unknown[name.partition(".")[2]] = repr(error)
        else:
            listed += json.loads(found.getvalue())
    return listed, unknown


def _modules(name: str) -> list[str]:
    """The names of a module and of all below it."""
    try:
        folders = getattr(importlib.import_module(name), "__path__", ())
    except BaseException:
        # Whoever imports it next says why.
        folders = ()
    below = [one.name for one in pkgutil.iter_modules(folders, f"{name}.")]
    return [name, *(module for one in below for module in _modules(one))]


def _plant(seconds: float) -> None:
    """Make what `time_` benchmarks time take longer."""
    find = run.get_benchmark_from_name

    def found(*arguments: Any, **options: Any) -> Any:
        benchmark = find(*arguments, **options)
        if benchmark.type != "time":
            return benchmark
        function = benchmark.func

        def longer(*given: Any) -> None:
            function(*given)
            # A sleep would not keep to it.
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                pass

        benchmark.func = longer
        return benchmark

    run.get_benchmark_from_name = found


class Failed(Exception):
    """A process of a benchmark did not do what it should; the message is a sentence's end."""


class SuiteRun:
    """The chosen benchmarks of a suite, each a fork of this process.

    Forks that measure memory come first: this process then has imported nothing of the suite.
    """

    def __init__(self, suite: str, folder: Path) -> None:
        self._suite = suite
        self._folder = folder
        told = json.loads((folder / "wanted.json").read_text())
        self._wanted: list[dict[str, Any]] = told["benchmarks"]
        self._imports: bool = told["is_imported_once"]
        self._caches: dict[str, str | Failed] = {}

    def run(self) -> None:
        """Run them, and leave what came of each."""
        samples: dict[str, list[Any]] = {}
        reasons: dict[str, list[Any]] = {}
        for one in sorted(self._wanted, key=lambda one: one["type"] != "peakmemory"):
            if one["type"] != "peakmemory" and self._imports:
                self._import()
            try:
                result, said = self._result(one)
            except Failed as error:
                reasons[one["name"]] = [str(error), True]
                continue
            if isinstance(result, float) and math.isnan(result):
                reasons[one["name"]] = [f"it was skipped{_reason_to_skip(said)}.", False]
            elif result is None:
                reasons[one["name"]] = ["it returned None.", True]
            else:
                is_timed = isinstance(result, dict) and "samples" in result
                samples[one["name"]] = result["samples"] if is_timed else [result]
        Path(os.environ["KVTRAIL_RESULT"]).write_text(json.dumps(samples))
        (self._folder / "reasons.json").write_text(json.dumps(reasons))

    def _import(self) -> None:
        """Import the modules of benchmarks once; where that fails, their own processes say so."""
        self._imports = False
        package = os.path.basename(self._suite)
        names = [f"{package}.{one['identifier']}" for one in self._wanted]
        for module in _modules(package):
            if any(name.startswith(f"{module}.") for name in names):
                with contextlib.suppress(BaseException):
                    importlib.import_module(module)

    def _result(self, one: dict[str, Any]) -> tuple[Any, str]:
        """What a benchmark gave, and what it printed."""
        key, limit_s = one["setup_cache_key"], one["timeout_s"]
        if key is not None and key not in self._caches:
            self._caches[key] = self._cache(one["identifier"], one["setup_cache_timeout_s"])
        cache = self._caches.get(key)
        if isinstance(cache, Failed):
            raise Failed(f"setup_cache: {cache}")
        result = self._folder / "result.json"
        with contextlib.suppress(OSError):
            result.unlink()
        arguments = (self._suite, one["identifier"], "{}", "None", str(result))
        said = self._fork(run._run, arguments, cache or mkdtemp(dir=self._folder), limit_s)
        try:
            return json.loads(result.read_text()), said
        except (OSError, ValueError):
            raise Failed("it ended its process before it gave a figure.") from None

    def _cache(self, identifier: str, limit_s: float) -> str | Failed:
        """The folder in which what setup_cache returned lies, for all benchmarks that share it."""
        folder = mkdtemp(dir=self._folder)
        try:
            self._fork(setup_cache._setup_cache, (self._suite, identifier, "{}"), folder, limit_s)
        except Failed as error:
            return error
        return folder

    def _fork(
        self, function: Callable[..., None], arguments: Any, folder: str, limit_s: float
    ) -> str:
        """Run a function of asv's runner in a process of its own; returns what it printed."""
        printed = self._folder / "printed.txt"
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                # A group of its own: at its limit, what it started ends with it.
                os.setpgid(0, 0)
                with posix_redirect_output(str(printed), permanent=True):
                    try:
                        os.chdir(folder)
                        function(arguments)
                        code = 0
                    except BaseException:
                        traceback.print_exc()
            finally:
                os._exit(code)
        is_late = False

        def give_up(*_: Any) -> None:
            nonlocal is_late
            is_late = True
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)

        signal.signal(signal.SIGALRM, give_up)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        _, status = os.waitpid(pid, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        said = printed.read_text(errors="replace") if printed.exists() else ""
        sys.stdout.write(said)
        if is_late:
            raise Failed(f"it did not end within its limit of {limit_s:g} s.")
        if os.WIFSIGNALED(status):
            raise Failed(f"signal {os.WTERMSIG(status)} ended its process.")
        code = os.WEXITSTATUS(status)
        if code == 1 and said.strip():
            last = said.strip().split("\n")[-1]
            raise Failed(f"it failed: {last}.")
        if code:
            raise Failed(f"it ended its process with exit code {code}.")
        return said


def _reason_to_skip(said: str) -> str:
    """Why asv says that it skipped a benchmark."""
    lines = [line for line in said.split("\n") if line.startswith("asv: skipped: ")]
    return f" in setup, by {lines[-1][len('asv: skipped: ') :].strip()}" if lines else ""


if __name__ == "__main__":
    main()
