"""One life: how long packaging takes for what installers ask of it, in microseconds a call."""

import json
import os
import time

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

VERSIONS = [f"{major}.{minor}.{patch}" for major in range(10) for minor in range(10) for patch in "0123456789"]
REQUIREMENTS = [f'package-{number}[extra]>=1.{number},<2; python_version >= "3.9"' for number in range(200)]
SPECIFIERS = [f">=1.{number},<{number + 2},!=1.{number}.5" for number in range(200)]
WINDOWS = 7


def timed(work, count):
    """Microseconds a call, over as many as `count`."""
    begun = time.perf_counter()
    work()
    return 1e6 * (time.perf_counter() - begun) / count


def parse_versions():
    for text in VERSIONS:
        Version(text)


def sort_versions():
    sorted(Version(text) for text in VERSIONS)


def parse_requirements():
    for text in REQUIREMENTS:
        Requirement(text)


def filter_versions():
    for text in SPECIFIERS[:20]:
        list(SpecifierSet(text).filter(VERSIONS[:200]))


WORK = {
    "version_us": (parse_versions, len(VERSIONS)),
    "sort_us": (sort_versions, len(VERSIONS)),
    "requirement_us": (parse_requirements, len(REQUIREMENTS)),
    "filter_us": (filter_versions, 20),
}
figures = {name: [timed(work, count) for _ in range(WINDOWS)] for name, (work, count) in WORK.items()}
with open(os.environ["KVTRAIL_RESULT"], "w") as file:
    json.dump(figures, file)
