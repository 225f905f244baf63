"""The subcommands of `python -m asv_bench`, each a module with `register(app)`."""
