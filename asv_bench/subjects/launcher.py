"""What starts the command of a life, and says how long it ran and how much memory it took.

A small process of its own: the kernel counts the memory of whoever starts a program into the
program's peak, and the ruler is larger than many programs. Run as a script by `processes`, with the
descriptor to report to before the command; nothing but the standard library is imported.
"""

from __future__ import annotations

import os
import sys
import time


def main() -> None:
    """Run the command, report seconds and KiB, and end as it ended."""
    report, arguments = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(report, False)
    begun = time.perf_counter()
    try:
        process = os.posix_spawnp(arguments[0], arguments, os.environ)
    except OSError as error:
        os.write(report, f"{arguments[0]}: {error.strerror}.".encode())
        return
    _, status, usage = os.wait4(process, 0)
    os.write(report, f"{time.perf_counter() - begun!r} {usage.ru_maxrss}".encode())
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        # A signal that ends whoever does not handle it, as this process does not.
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
