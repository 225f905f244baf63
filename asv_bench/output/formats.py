"""Answers as Bencher, github-action-benchmark and readers of JUnit's XML take them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import Any
from xml.etree import ElementTree

from asv_bench.compare.verdict import Verdict, word_of
from asv_bench.output.record import Record
from asv_bench.output.table import interval, percentage
from asv_bench.words import counted

_WORDS = {
    "failure": "slower, differs, not fixed, not wholly fixed, partly fixed, found",
    "error": "failed, nothing_measured",
    "passed": "faster, equivalent, same, none, wholly fixed, no regression to fix was found, good",
}
_STANDINGS = {word: kind for kind, words in _WORDS.items() for word in words.split(", ")}
"""What JUnit calls an answer, by the record's word for it; all others are skipped."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Format(StrEnum):
    """Of Bencher (Bencher Metric Format), of github-action-benchmark ("custom"), and of JUnit."""

    BMF = "bmf"
    GAB = "gab"
    JUNIT = "junit"


def in_format(wanted: Format, record: Record, higher: Collection[str]) -> str:
    """What a record says in a format of others; of metrics in `higher`, more is better."""
    if wanted is Format.JUNIT:
        return _junit(record)
    finding = record.results.get("finding") or {}
    compared = record.results.get("comparisons") or [finding.get("gate") or {}]
    by_measure: dict[str, dict[str, Any]] = {}
    entries = []
    for one in compared:
        if (value := one.get("head_value")) is None:
            continue
        name, unit = one["benchmark"], one["unit"]
        # Of a contrast's name the first word is the metric.
        better = "higher" if {name, name.partition(" ")[0]} & {*higher} else "lower"
        measure, entry = {"value": value}, {"name": name, "unit": unit, "value": value}
        low, high = ((1 + bound) / (1 + one["effect"]) * value for bound in one["interval"])
        if math.isfinite(high):  # that of one pair is not
            measure |= {"lower_value": low, "upper_value": high}
            entry["range"] = f"{low:.6g} to {high:.6g}"
        by_measure[name] = {unit or "value": measure}
        entries.append({**entry, "extra": _text(one), "better": better})
    return f"{json.dumps(by_measure if wanted is Format.BMF else entries, indent=2)}\n"


def _junit(record: Record) -> str:
    answers = list(_answers(record))
    kinds = [_STANDINGS.get(word, "skipped") for _, word, _ in answers]
    counts = {"tests": len(kinds), "failures": kinds.count("failure")}
    counts |= {"errors": kinds.count("error"), "skipped": kinds.count("skipped")}
    told = {"name": f"kvtrail {record.command}", **{name: str(one) for name, one in counts.items()}}
    root = ElementTree.Element("testsuites", told)
    told |= {"time": f"{record.results.get('seconds', 0):.3f}", "timestamp": record.started}
    suite = ElementTree.SubElement(root, "testsuite", told)
    for kind, (name, word, text) in zip(kinds, answers, strict=True):
        about = {"classname": f"kvtrail.{record.command}", "name": _NOT_XML.sub("\ufffd", name)}
        case, said = ElementTree.SubElement(suite, "testcase", about), _NOT_XML.sub("\ufffd", text)
        if kind == "passed":
            ElementTree.SubElement(case, "system-out").text = said
        else:
            ElementTree.SubElement(case, kind, {"message": said, "type": word}).text = said
    ElementTree.indent(root)
    # What ASCII lacks is written as references, for whatever encoding standard output has.
    return f"{ElementTree.tostring(root, 'us-ascii', xml_declaration=True).decode()}\n"


def _answers(record: Record) -> Iterator[tuple[str, str, str]]:
    """What each answer is of, its word in the record, and its text."""
    results = record.results
    if finding := results.get("finding"):
        name = finding.get("check") or finding["gate"]["benchmark"]
        yield name, finding["outcome"], results["answer"]
    for one in results.get("fixed", ()):
        yield one["metric"], "slower" if one["slower"] else one["state"], one["sentence"]
    if "fixed" not in results:
        for one in results.get("comparisons", ()):
            yield one["benchmark"], one["verdict"], _text(one)
    checks = results.get("checks", ())
    ends = [record.settings[end]["hash"] for end in ("base", "head")] if checks else []
    # Of several, those of the ends decide.
    for one in [one for one in checks if [one["base"], one["head"]] == ends] or checks:
        yield one["check"], one["verdict"], one["what"]
    if not any(results.get(key) for key in ("finding", "fixed", "comparisons")):
        said = results.get("answer") or " ".join(record.notes)
        yield record.command, results["outcome"], said


def _text(one: Mapping[str, Any]) -> str:
    """A comparison of a record in a line."""
    if one["effect"] is None:
        return ": ".join(filter(None, (one["verdict"], one["reason"])))
    effect = percentage(one["effect"], 2, signed=True)
    values = f"{one['base_value']:.6g} → {one['head_value']:.6g} {one['unit']}".rstrip()
    word = word_of(Verdict(one["verdict"]), one["unit"], one["effect"])
    said = f"{word}: {effect} ({interval(2)(one['interval'])}), {values}"
    count = counted(one["pairs_used"], "pair")
    if one["files"]:
        count = f"{min(one['files'])} files a side"
    return ". ".join(filter(None, (f"{said}, {count}", one["reason"])))
