"""The subcommands of `python -m asv_bench`, a module each."""
