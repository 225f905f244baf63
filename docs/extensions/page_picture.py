"""A picture of the page that `kvtrail report` makes of a bisection, from its record.

    python docs/extensions/page_picture.py RECORD PICTURE.png

Run it in an environment that has jinja2 and Pillow, on a machine that has Chromium.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import sys
import tempfile
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "tests"))

from browser import Browser
from PIL import Image
from rich.console import Console

from asv_bench.history.histories import Histories
from asv_bench.pages.site import build_page

WIDTH = 960
"""Wide enough for the page as on a desk."""
LEFT_OUT = "header, main > p:not(.news), main > ul, .csv, .graph details"
"""What stands around the answer and the graph."""


def take(record: Path, picture: Path) -> None:
    """Build the page of a record in a folder of its own, and write its answer and its graph."""
    name = json.loads(record.read_text("utf-8"))["settings"]["subject"]["name"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shutil.copy(record, folder)
        index = build_page(Histories(name, folder, folder, folder), Console())
        with closing(Browser(folder / "profile")) as browser:
            browser.size(WIDTH, 900)
            browser.open(index.with_name(f"{record.stem}.html"))
            browser.wait_for("!!document.querySelector('canvas')?.style.width")
            browser.ask(f"document.querySelectorAll('{LEFT_OUT}').forEach((one) => one.remove())")
            end = browser.ask("document.querySelector('.panel').getBoundingClientRect().bottom")
            browser.size(WIDTH, int(end) + 12)
            shot = browser.command("Page.captureScreenshot")
    shown = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    # So few colours take half of the bytes, and look the same.
    shown.quantize(128, dither=Image.Dither.NONE).save(picture, optimize=True)


if __name__ == "__main__":
    take(*map(Path, sys.argv[1:]))
