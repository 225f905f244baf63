"""Make 400 attrs classes of one name, as a function with a class in it does: milliseconds."""

import time

import attr


def make() -> type:
    @attr.s
    class Token:
        access = attr.ib()
        expires = attr.ib()
        refresh = attr.ib()

    return Token


begun = time.process_time()
for _ in range(400):
    make()
print("classes took", 1e3 * (time.process_time() - begun))
