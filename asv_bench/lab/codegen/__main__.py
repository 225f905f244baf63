"""`python -m asv_bench.lab.codegen`: see `asv_bench.lab.codegen.check`."""

import typer

from asv_bench.lab.codegen.check import run

if __name__ == "__main__":
    typer.run(run)
