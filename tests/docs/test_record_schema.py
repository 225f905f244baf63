"""Records of the commands are what the reference says."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import pytest
from documents import ROOT
from simulated_pairs import BASE, HEAD, pair_of

import record_schema
from asv_bench.compare.comparison import with_pairs
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.measure.software import Software
from asv_bench.output.record import Record


def test_a_record_of_today_has_the_documented_fields_and_no_others() -> None:
    content = json.loads(json.dumps(Record("compare", {"base": "HEAD~1"}).to_json()))
    msgspec.convert(content, record_schema.Record)
    documented = {field.name for field in msgspec.structs.fields(record_schema.Record)}
    assert set(content) == documented


COMPARISONS = sorted((ROOT / "reports" / "verdicts").glob("compare-*.json"))


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.stem)
def test_records_of_comparisons_keep_to_it(path: Path) -> None:
    record = msgspec.convert(json.loads(path.read_text("utf-8")), record_schema.Record)
    assert record.results.comparisons


def test_an_answer_of_today_has_documented_fields_only() -> None:
    pairs = [pair_of(1.0, 1.01), pair_of(1.0, 1.02)]
    answer = with_pairs(Comparison("b", BASE, HEAD, Verdict.INCONCLUSIVE), pairs, ComparisonPlan())
    content = json.loads(json.dumps(asdict(answer)))
    assert msgspec.convert(content, record_schema.Comparison).test == "signed ranks and signs"


def test_a_pair_and_a_cell_of_today_have_documented_fields_only() -> None:
    pair = replace(pair_of(1.0, 1.01), higher_is_better=True)
    content = json.loads(json.dumps(pair.to_json()))
    assert msgspec.convert(content, record_schema.Pair).higher_is_better
    cell = Software("python", {"numpy": "2.1"}, {"OMP_NUM_THREADS": "1"}).to_json()
    assert msgspec.convert(cell, record_schema.Cell).packages == {"numpy": "2.1"}


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.stem)
def test_pairs_of_stored_comparisons_keep_to_it(path: Path) -> None:
    samples = json.loads(path.read_text("utf-8"))["samples"]
    assert msgspec.convert(samples, list[record_schema.Pair])


def test_a_field_that_is_not_documented_is_noticed() -> None:
    content = json.loads(json.dumps(Record("compare", {}).to_json())) | {"surprise": 1}
    with pytest.raises(msgspec.ValidationError, match="surprise"):
        msgspec.convert(content, record_schema.Record)


def test_the_page_and_the_schema_name_every_field() -> None:
    page, schema = record_schema.markdown(), json.dumps(record_schema.schema())
    for part in record_schema.PARTS:
        for field in msgspec.structs.fields(part):
            assert f"| `{field.name}` |" in page
            assert f'"{field.name}"' in schema
