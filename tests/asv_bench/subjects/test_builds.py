"""`builds`: luck of a build, seen from outside, on a C program whose layout depends on its path."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository

TABLES = """
    [subject]
    name = "toy"
    setup = "sh build.sh"
    measure = "$KVTRAIL_OUT/bench"
    builds = 3
    env = {{ MADE = "{made}" }}

    [metrics.steps]
    regex = 'steps: ([0-9.]+)'
    unit = "steps"
    margin = 2.0
    """
BUILD = """
    echo "${#KVTRAIL_OUT} ${#KVTRAIL_PADDING}" >> "$MADE"
    gcc -DPLACE="\\"$KVTRAIL_OUT\\"" bench.c -o "$KVTRAIL_OUT/bench"
    """
PROGRAM = """
    #include <stdio.h>
    #include <time.h>
    volatile long steps;
    int main(void) {{
        struct timespec now;
        long most = {most};
        clock_gettime(CLOCK_REALTIME, &now);
        while (steps < most) steps++;
        printf("steps: %ld\\n", steps + now.tv_nsec / 1000 % 100);
    }}
    """
PLAIN = "100000"
SLOWER = "105000"
LUCKY = "sizeof PLACE / 5 % 3 == 1 ? 105000 : 100000"


@pytest.fixture
def built(tmp_path: Path) -> Callable[..., DeclaredRepository]:
    """A repository of a C program that makes so many steps: of two commits."""
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")

    def make(head: str, tables: str = TABLES) -> DeclaredRepository:
        made = DeclaredRepository.make(tmp_path / "toy", tables.format(made=tmp_path / "made"))
        for most in (PLAIN, head):
            text = {"bench.c": PROGRAM.format(most=most), "build.sh": BUILD}
            made.change("change", text)
        return made

    return make


@pytest.mark.parametrize(
    ("head", "verdict", "says"),
    [
        (LUCKY, "inconclusive", "% is seen in 1 of 3 builds"),
        (SLOWER, "slower", "it is seen in 3 of 3 builds"),
        (f"{PLAIN} + 1", "equivalent", ""),
    ],
)
def test_a_change_is_one_of_all_builds(
    kvtrail, built, tmp_path: Path, head: str, verdict: str, says: str
) -> None:
    said = kvtrail(built(head), "compare", "HEAD~1", "HEAD")
    assert said.verdicts == {"steps": verdict}
    assert said.code == {"slower": 3, "inconclusive": 4, "equivalent": 0}[verdict]
    assert says in said.text
    assert says in said.answers["steps"]["reason"]
    assert "of this build" not in said.text + said.record["results"]["of_build"]
    sizes = [tuple(map(int, line.split())) for line in (tmp_path / "made").read_text().splitlines()]
    assert len(sizes) == 6
    assert [len({one[place] for one in sizes}) for place in (0, 1)] == [3, 3]
    ran = [(pair["base"]["build"], pair["head"]["build"]) for pair in said.record["samples"]]
    assert ran[:6] == [(0, 0), (1, 1), (2, 2)] * 2


def test_what_is_built_once_is_said_to_be_of_this_build(kvtrail, built) -> None:
    said = kvtrail(built(SLOWER, TABLES.replace("builds = 3", "")), "compare", "HEAD~1", "HEAD")
    assert said.verdicts == {"steps": "slower"}
    assert "answer is one of this build" in said.text
    assert "of this build" in said.record["results"]["of_build"]
