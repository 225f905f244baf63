"""Prints the releases of a package, oldest first; the user's Python runs it, for its pip's indexes.

`pip index versions` itself lists what was yanked, and what is left where an index does not answer.
"""

import sys
from typing import Any

from pip._internal.commands.index import IndexCommand
from pip._internal.exceptions import CommandError
from pip._internal.index import collector
from pip._vendor.packaging.version import Version


def fail(link: object, reason: object, *_: object) -> None:
    """Fail where an index does not answer; by 404 or 403 it says that it lacks the package."""
    if not str(reason).startswith(("403 ", "404 ")):
        raise CommandError(f"{link} does not answer: {reason}")


class Releases(IndexCommand):
    """Is told the package, the first version and the last, and whether to list pre-releases."""

    def get_available_package_versions(self, options: Any, args: list[Any]) -> None:
        name, since, until, pre = args
        with self._build_session(options) as session:
            files = self._build_package_finder(options, session).find_all_candidates(name)
        for version in sorted({one.version for one in files if not one.link.is_yanked}):
            end = Version(until or str(version))
            is_within = Version(since or "0.dev0") <= version and (
                version <= end or version.release[: len(end.release)] == end.release
            )
            if is_within and (pre or not version.is_prerelease):
                print(version)


if __name__ == "__main__":
    sys.tracebacklimit = 0
    collector._handle_get_simple_fail = fail  # type: ignore[assignment]
    sys.exit(Releases("index", "").main(["versions", "-qq", "--retries", "1", "--", *sys.argv[1:]]))
