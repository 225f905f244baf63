"""What the README and the decode report say of speed, against the record that they name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from asv_bench.cli.headline import headline_table

ROOT = Path(__file__).parents[3]
ENGINES = ("kvtrail", "transformers-static", "transformers-dynamic")


def rows_of(text: str) -> dict[str, list[str]]:
    """The cells of each table row that begins with a workload's name and has a bold figure."""
    rows = re.findall(r"^\| `(\w+)`, (.*\*\*.*) \|$", text, re.MULTILINE)
    return {name: [cell.strip(" *") for cell in cells.split("|")] for name, cells in rows}


def test_the_readme_has_the_figures_of_the_records_that_it_names() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| .*\(\[record\]\((.*)\.md\)\) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) >= 2
    for path, cells in rows:
        results = json.loads((ROOT / f"{path}.json").read_text("utf-8"))["results"]["rows"]
        steps = {row["engine"]: f"{row['step_ms']:.3f}" for row in results}
        engines = ("kvtrail", "vllm", "transformers-static")
        assert [cell.strip(" *") for cell in cells.split("|")] == [steps[one] for one in engines]


def test_the_decode_report_has_the_figures_of_the_record_and_names_its_commit() -> None:
    headline = json.loads((ROOT / "reports/headline.json").read_text("utf-8"))
    steps = {(row["workload"], row["engine"]): f"{row['step_ms']:.3f}" for row in headline["rows"]}
    written = {
        workload: [steps.get((workload, engine), "-") for engine in ENGINES]
        for workload in dict.fromkeys(workload for workload, _ in steps)
    }
    text = (ROOT / "reports/decode.md").read_text("utf-8")
    found = {name: [cells[3], *cells[-2:]] for name, cells in rows_of(text).items()}
    assert found == written
    assert f"[headline.json](headline.json), at {headline['commit'][:7]}" in text


def test_the_decode_report_has_families_figures_of_their_record() -> None:
    rows = json.loads((ROOT / "reports/headline-h100.json").read_text("utf-8"))["rows"]
    steps = {row["workload"]: f"{row['step_ms']:.3f}" for row in rows}
    text = (ROOT / "reports/decode.md").read_text("utf-8")
    section = text[text.index("## Llama and Qwen") : text.index("## What each idea")]
    model, found = "", {}
    pattern = r"^\|(?: ([\w.-]+),[^|]*)? \| (\d+) \| .* \| \*\*([\d.]+)\*\* \|"
    for name, batch, step in re.findall(pattern, section, re.MULTILINE):
        model = name or model
        found[f"{model}-{batch}"] = step
    assert len(found) == 8
    assert found == {name: steps[name] for name in found}


@pytest.mark.parametrize("path", sorted((ROOT / "reports").glob("headline*.json")), ids=str)
def test_the_table_beside_a_record_is_of_its_rows(path: Path) -> None:
    table = headline_table(json.loads(path.read_text("utf-8"))["rows"], "").to_markdown()
    title, _, *lines = path.with_suffix(".md").read_text("utf-8").splitlines()
    assert json.loads(path.read_text("utf-8"))["commit"] in title
    assert lines == table.splitlines()
