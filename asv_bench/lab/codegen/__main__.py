"""``python -m asv_bench.lab.codegen``: see `asv_bench.lab.codegen.check`."""

import sys

from asv_bench.lab.codegen.check import main

if __name__ == "__main__":
    sys.exit(main())
