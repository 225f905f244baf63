"""``python -m asv_bench.codegen``: see `asv_bench.codegen.check`."""

import sys

from asv_bench.codegen.check import main

if __name__ == "__main__":
    sys.exit(main())
