"""How Sphinx builds the site; `nox -s docs` runs it."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "extensions")]

from asv_bench import __version__ as kvtrail_version  # noqa: E402

project = "kvtrail"
author = "the kvtrail contributors"
copyright = author
release = version = kvtrail_version

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "directives",
]
exclude_patterns = ["extensions"]

html_theme = "furo"
html_title = "kvtrail"
html_static_path = ["images"]
html_copy_source = False
html_show_sphinx = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Docstrings write code in single backticks.
default_role = "code"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
# Types in docstrings are prose, such as "int32 array [B]", and no names to look up.
napoleon_use_param = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True

# The site is built without a network, so the documentation of other projects is not linked.
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|np|npt|numpy|triton|os|collections|pathlib|typing)(\..*)?"),
    (r"py:.*", r"Path|sequence|lists"),
    # What the engine's packages keep to themselves.
    (r"py:.*", r"engine\.\w+\.\w+\.\w+"),
]
