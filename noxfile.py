# /// script
# dependencies = ["nox>=2025.10.14", "packaging"]
# ///
"""Every task of kvtrail. The quick ones run by default; name the others with -s."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / ".ci"))

from resolution import project_requirements  # noqa: E402

import host_torch  # noqa: E402

nox.needs_version = ">=2025.10.14"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_existing_virtualenvs = True
# An environment made by another interpreter than the session's is made again.
os.environ.setdefault("NOX_ENABLE_STALENESS_CHECK", "1")

PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
LOCKS = ROOT / ".ci" / "locks"
TYPED = ("engine", "kernels", "asv_bench", "noxfile.py", ".ci")

try:
    TORCH = host_torch.find_torch()
except host_torch.HostTorchError as error:
    sys.exit(f"noxfile: {error}")
# A borrowed torch works in the Python that it was built for, and in no other.
PYTHON = TORCH.host.executable if TORCH.host else None


@dataclass(frozen=True)
class TritonChoice:
    """One Triton that kernel sessions run on; ``version`` None means the one beside torch."""

    name: str
    version: str | None = None


# The reference host's Triton is older than the locked one, and Gluon, its lower dialect, still
# renames what the Hopper kernels use: the oldest and the newest that are allowed must work too. A
# host that lends its torch has the only Triton that fits it.
TRITONS = (
    (TritonChoice("host"),)
    if TORCH.host
    else (
        TritonChoice("locked"),
        TritonChoice("3.6.0", version="3.6.0"),
        TritonChoice("3.9.0", version="3.9.0"),
    )
)
# Options that spread tests over cores. Not over all of them: some tests hold what one process does
# to seconds, and hosts with a GPU have many cores. Tests that need most of a GPU's memory are a
# group, of which one runs at a time.
MOST_PROCESSES = 8 if TORCH.has_gpu else 4
SPREAD = ("--numprocesses=auto", f"--maxprocesses={MOST_PROCESSES}", "--dist=loadgroup")

MACHINE_CODE = "tests/kernels/codegen/machine_code.py"

# Every reference is resolved, every warning is an error, and all of them are shown.
STRICT = ("--nitpicky", "--fail-on-warning", "--keep-going", "--fresh-env", "--quiet")

EACH_TRITON = nox.parametrize("triton", [nox.param(t, id=t.name) for t in TRITONS])


@dataclass(frozen=True)
class Command:
    """A session that is one command of ``kvtrail``; arguments after -- go to it."""

    name: str
    what: str
    groups: tuple[str, ...] = ()


COMMANDS = (
    Command("bench", "Measure decoding of the working tree, store it with asv, build a page."),
    Command("history", "Measure ranges of commits: nox -s history -- RANGE..."),
    Command("compare", "Compare two commits: nox -s compare -- BASE HEAD."),
    Command("bisect", "Find the commit that made it slower: nox -s bisect -- GOOD BAD."),
    Command("explain", "Say what differs that explains a change: nox -s explain -- BASE HEAD."),
    Command("fixed", "See whether a regression is fixed: nox -s fixed -- PARENT CULPRIT HEAD."),
    Command("changes", "Find where the stored histories moved, and confirm it by comparing."),
    Command("profile", "Trace decoding and print the time per kernel."),
    Command("report", "Build the pages from the stored measurements."),
    Command("run", "Measure a named workload: nox -s run -- WORKLOAD."),
    Command("scheduler", "Measure a batch of equal requests, offline and online."),
    Command("streaming", "Measure streamed requests: TTFT, TPOT and ITL percentiles."),
    Command("headline", "Measure the named workloads into reports/headline.json."),
    Command(
        "peers", "Measure other engines beside kvtrail's: nox -s peers -- --peer ...", ("peers",)
    ),
)
LAB_COMMANDS = (
    Command("calibrate", "See whether compare's verdicts hold here, against planted slowdowns."),
    Command("ladder", "Run every earlier host path, and try what was claimed of each."),
)


@dataclass(frozen=True)
class Check:
    """GPU tests that `memcheck` runs: by themselves, or under compute-sanitizer."""

    name: str
    arguments: tuple[str, ...]  # of pytest
    is_sanitized: bool = True
    # Give every tensor an allocation of its own. torch's allocator hands out parts of large ones,
    # where an access beyond a tensor still lands in valid memory; graphs cannot be captured without
    # it.
    is_uncached: bool = False


SANITIZER = ("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "1")
CHECKS = (
    Check(
        "plain",
        (
            "tests/kernels",
            "tests/engine/test_on_gpu.py",
            "tests/engine/fused/test_step_on_gpu.py",
            "tests/engine/transport/test_staging.py",
            "tests/engine/transport/test_word_changes.py",
        ),
        is_sanitized=False,
    ),
    Check(
        "graphs",
        (
            "tests/kernels/test_on_gpu.py",
            "tests/kernels/attention/test_ring_attention.py",
            "tests/kernels/attention/test_row.py",
            "tests/kernels/test_fused_on_gpu.py",
            "tests/engine/transport/test_word_changes.py",
        ),
    ),
    Check(
        "allocations",
        (
            "tests/kernels/attention/test_append.py",
            "tests/kernels/attention/test_decode.py",
            "tests/kernels/attention/test_prefill.py",
            "tests/kernels/linear/test_gate.py",
            "tests/kernels/linear/test_norm.py",
            "tests/kernels/attention/test_fused.py",
            "tests/kernels/attention/test_rotation.py",
            "tests/kernels/attention/test_eight_bits.py",
            "tests/kernels/attention/test_window.py",
            "tests/kernels/linear/test_fp8.py",
            "tests/kernels/linear/test_projections.py",
            "tests/kernels/linear/test_refusals.py",
            "tests/kernels/step/test_residual.py",
            "tests/kernels/step/test_rows.py",
            "tests/kernels/sampling/test_draw.py",
            "tests/kernels/attention/test_ring_attention.py",
            "tests/kernels/attention/test_row.py",
            "tests/kernels/test_fused_on_gpu.py",
            # The overflow test's caches of 8.6 GB are too slow to watch, and are checked above, as
            # are the tests that capture graphs.
            "-k",
            "not torch- and not beyond_32 and not replayed_graph and not tiles_in_use_repeat",
        ),
        is_uncached=True,
    ),
)
# Exit codes that are answers, not failures.
SLOWER, INCONCLUSIVE, OTHER_RESULT = 3, 4, 6
ANSWERS = {
    "compare": (SLOWER, INCONCLUSIVE, OTHER_RESULT),
    "bisect": (SLOWER, INCONCLUSIVE),
    "fixed": (SLOWER, INCONCLUSIVE, OTHER_RESULT),
    "changes": (SLOWER,),
}


@nox.session(python=PYTHON, default=False)
def stack(session: nox.Session) -> None:
    """Install torch and what else every session imports, once for all of them."""
    session.log(TORCH.sentence)
    if TORCH.host:
        host_torch.borrow(Path(session.env_dir), TORCH.host.site_directories)
    _install(session, project_requirements(PYPROJECT, ()))


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting with ruff."""
    session.install("-c", str(LOCKS / "cpu.txt"), *_groups("lint"))
    session.run("ruff", "check", ".", *session.posargs)
    session.run("ruff", "format", "--check", ".")


@nox.session(python=PYTHON, requires=["stack"])
def types(session: nox.Session) -> None:
    """Check types with mypy, strictly."""
    _provide(session, "types")
    session.run("mypy", *(session.posargs or TYPED))


@nox.session(python=PYTHON, requires=["stack"], default=False)
def docs(session: nox.Session) -> None:
    """Build the documentation into build/docs; any warning fails."""
    _provide(session, "docs")
    session.run("sphinx-build", *STRICT, "docs", "build/docs", *session.posargs, env=_compiled())


@nox.session(python=PYTHON, requires=["stack"])
def tests(session: nox.Session) -> None:
    """Run the tests, the kernels' as in `kernels`; what follows -- goes to pytest instead."""
    _provide(session, "test")
    if session.posargs:
        session.run("python", "-m", "pytest", *session.posargs, env=_keeping_bytecode(_compiled()))
        return
    # The ruler's tests measure a GPU, where there is one, and need it for themselves.
    spread = () if TORCH.has_gpu else SPREAD
    pytest = ("python", "-m", "pytest")
    session.run(*pytest, *spread, "--ignore=tests/kernels", env=_keeping_bytecode(_compiled()))
    # The whole grids are run by `kernels`. Fused steps are nothing but kernels.
    with_kernels = ("tests/kernels", "tests/engine/fused")
    session.run(
        *(*pytest, *SPREAD, "-m", "not thorough and not spare", *with_kernels),
        env=_keeping_bytecode(_triton_environment()),
    )


@nox.session(python=PYTHON, requires=["stack"], default=False)
def fleet(session: nox.Session) -> None:
    """Run the tests of --fleet on a Ray cluster whose nodes are all on this machine."""
    _provide(session, "test", "fleet")
    tests = ("-m", "thorough", "tests/asv_bench/subjects/test_fleet.py")
    session.run("python", "-m", "pytest", *(session.posargs or tests), env=_compiled())


@nox.session(python=PYTHON, requires=["stack"], default=False)
@EACH_TRITON
def kernels(session: nox.Session, triton: TritonChoice) -> None:
    """Run the kernel tests, or those named after --, on a GPU or through Triton's interpreter."""
    _provide(session, "test")
    _choose_triton(session, triton)
    # They compile more than they run, so that it pays to share a GPU, too.
    arguments = [*SPREAD, *kernel_tests(session.posargs, on_gpu=TORCH.has_gpu)]
    session.run("python", "-m", "pytest", *arguments, env=_triton_environment())


@nox.session(python=PYTHON, requires=["stack"], default=False)
@EACH_TRITON
def codegen(session: nox.Session, triton: TritonChoice) -> None:
    """Compile every kernel variant for sm_90, GPU or not; -- -k NAME compiles some of them."""
    _provide(session, "test")
    _choose_triton(session, triton)
    # Without a GPU, too: nothing is run.
    env = {**_compiled(), "KVTRAIL_REQUIRE": None}
    session.run(*("python", "-m", "pytest", "-q", MACHINE_CODE, *session.posargs), env=env)


@nox.session(python=PYTHON, requires=["stack"], default=False)
def counters(session: nox.Session) -> None:
    """Count what decode steps do and kernels compile to; compare exactly with what was accepted."""
    _provide(session)
    session.run("python", "-m", "tests.counters", *session.posargs, env=_compiled())


@nox.session(default=False)
def detectors(session: nox.Session) -> None:
    """Score `changes` beside otava, ruptures and asv on labelled series: -- --data FOLDER."""
    # Without the stack and its lock: otava pins an old numpy.
    session.install(*PYPROJECT["project"]["dependencies"], *_groups("detectors"))
    session.run("python", "-m", "tests.simulations", "labelled", *session.posargs)


@nox.session(python=PYTHON, requires=["stack"], default=False)
def mutants(session: nox.Session) -> None:
    """Plant faults in a copy of the kernels, one at a time, and demand that a test notices each."""
    _provide(session, "test")
    # Of the commands here, this alone decides by itself what runs through the interpreter.
    session.run("python", "-m", "tests.mutants", *session.posargs, env={"TRITON_INTERPRET": None})


@nox.session(python=PYTHON, requires=["stack"], default=False)
def memcheck(session: nox.Session) -> None:
    """Run the GPU tests, plainly and under compute-sanitizer, or the checks named after --."""
    chosen = [one for one in CHECKS if not session.posargs or one.name in session.posargs]
    if {one.name for one in chosen} < set(session.posargs):
        names = ", ".join(one.name for one in CHECKS)
        session.error(f"{' '.join(session.posargs)}: a check has no such name; there are {names}")
    if not TORCH.has_gpu:
        session.error("memcheck needs a GPU that torch can use, and there is none here")
    if shutil.which(SANITIZER[0]) is None:
        session.error(f"there is no {SANITIZER[0]} on the PATH: it comes with the CUDA toolkit")
    _provide(session, "test")
    for check in chosen:
        session.log(f"check: {check.name}")
        # A test process on its own: the sanitizer's exit code is then that of all its errors.
        around = (SANITIZER, ()) if check.is_sanitized else ((), SPREAD)
        own = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if check.is_uncached else {}
        command = (*around[0], "python", "-m", "pytest", *around[1], *check.arguments)
        session.run(*command, env={**_compiled(), **own}, external=check.is_sanitized)


def _add_command(command: Command, *group: str) -> None:
    @nox.session(name=command.name, python=PYTHON, requires=["stack"], default=False)
    def run_command(session: nox.Session) -> None:
        _provide(session, *command.groups)
        answers = _answers_that_pass(session, command.name)
        session.run(
            # The checkout's own ruler, so that nothing has to be installed.
            *("python", "-m", "asv_bench", *group, command.name, *session.posargs),
            env=_compiled(),
            success_codes=[0, *answers],
        )

    run_command.__doc__ = command.what


for _command in COMMANDS:
    _add_command(_command)
for _command in LAB_COMMANDS:
    _add_command(_command, "lab")


def _answers_that_pass(session: nox.Session, name: str) -> tuple[int, ...]:
    """Let answers pass, except in continuous integration, which must stop for them.

    nox itself ends with 1 for any failed session; the command alone ends with its own code.
    """
    if name not in ANSWERS or os.environ.get("CI"):
        return ()
    session.log("exit codes 3, 4 and 6 (another result) are answers; with CI=1 they fail here")
    return ANSWERS[name]


@nox.session(default=False)
def bundle(session: nox.Session) -> None:
    """Pack wheels, history and a script for an offline GPU host: -- --python-version 3.12."""
    session.install("-c", str(LOCKS / "cpu.txt"), "packaging")
    session.run("python", ".ci/offline_bundle.py", *session.posargs)


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Resolve the versions in .ci/locks/cpu.txt anew; nothing of it is installed."""
    session.install("packaging")
    session.run("python", ".ci/resolve_lock.py")


def _groups(*names: str) -> list[str]:
    return list(nox.project.dependency_groups(PYPROJECT, *names))


def _provide(session: nox.Session, *groups: str) -> None:
    """Let a session import what the stack installed, and add its own dependency groups."""
    session.log(TORCH.sentence)
    environment = Path(session.env_dir)
    stacked = (environment.parent / "stack").glob("lib/python*/site-packages")
    lent = TORCH.host.site_directories if TORCH.host else ()
    host_torch.borrow(environment, [*stacked, *lent])
    _install(session, _groups(*groups))


def _install(session: nox.Session, requirements: Iterable[str]) -> None:
    missing = host_torch.missing_on_host(requirements, TORCH.host)
    if not missing:
        return
    path = Path(session.env_dir, "constraints.txt")
    lock_text = (LOCKS / "cpu.txt").read_text("utf-8")
    path.write_text(host_torch.constraints(lock_text, TORCH.host), encoding="utf-8")
    session.install("-c", str(path), *missing)


def kernel_tests(arguments: Sequence[str], *, on_gpu: bool) -> list[str]:
    """Return what pytest is to run: the tests in ``arguments``, else all that concern kernels."""
    if any("tests" in Path(argument.partition("::")[0]).parts for argument in arguments):
        return list(arguments)
    # The engine's own GPU tests have nowhere else to run where they must not be skipped.
    engines = sorted((ROOT / "tests" / "engine").rglob("test_*on_gpu.py")) if on_gpu else []
    return ["tests/kernels", *(str(path.relative_to(ROOT)) for path in engines), *arguments]


def _choose_triton(session: nox.Session, triton: TritonChoice) -> None:
    if triton.version is not None:
        session.install("--no-deps", f"triton=={triton.version}")


def _compiled() -> Mapping[str, str | None]:
    """Compile Triton's kernels; tests on a GPU machine fail where torch cannot use the GPU."""
    return {"TRITON_INTERPRET": None} | ({"KVTRAIL_REQUIRE": "gpu"} if TORCH.has_gpu else {})


def _keeping_bytecode(environment: Mapping[str, str | None]) -> Mapping[str, str | None]:
    """Half of what the tests' many processes take is compiling modules, where that is not kept."""
    return {**environment, "PYTHONDONTWRITEBYTECODE": None}


def _triton_environment() -> Mapping[str, str | None]:
    """Run the kernels as this machine can, and fail rather than skip where it cannot after all."""
    if TORCH.has_gpu or os.environ.get("KVTRAIL_REQUIRE") == "gpu":
        return _compiled()
    return {"TRITON_INTERPRET": "1", "KVTRAIL_REQUIRE": "interpreter"}


if __name__ == "__main__":
    nox.main()
