"""`python -m asv_bench.lab.turns`: see `asv_bench.lab.turns.study`."""

import typer

from asv_bench.lab.turns.study import run

if __name__ == "__main__":
    typer.run(run)
