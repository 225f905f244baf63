"""What the README says of speed, and tables of figures, against the records that they name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from asv_bench.cli.headline import headline_table

ROOT = Path(__file__).parents[3]


def test_the_readme_has_the_figures_of_the_records_that_it_names() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| .*\(\[record\]\((.*)\.md\)\) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) >= 2
    for path, cells in rows:
        results = json.loads((ROOT / f"{path}.json").read_text("utf-8"))["results"]["rows"]
        steps = {row["engine"]: f"{row['step_ms']:.3f}" for row in results}
        engines = ("kvtrail", "vllm", "transformers-static")
        assert [cell.strip(" *") for cell in cells.split("|")] == [steps[one] for one in engines]


@pytest.mark.parametrize("path", sorted((ROOT / "reports").glob("headline*.json")), ids=str)
def test_the_table_beside_a_record_is_of_its_rows(path: Path) -> None:
    table = headline_table(json.loads(path.read_text("utf-8"))["rows"], "").to_markdown()
    title, _, *lines = path.with_suffix(".md").read_text("utf-8").splitlines()
    assert json.loads(path.read_text("utf-8"))["commit"] in title
    assert lines == table.splitlines()
