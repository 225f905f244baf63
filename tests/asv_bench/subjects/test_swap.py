"""Two commits under two labels: the change is put down to the axis that it belongs to."""

from __future__ import annotations

import pytest

from asv_bench.errors import Refused

TABLES = """
    [subject]
    name = "toy"
    measure = "python bench.py"

    [metrics.tokens]
    path = "tokens"
    better = "higher"

    [axis]
    labels = ["triton-3.6", "triton-3.7"]
    """
BENCH = "label, commit = label == 'triton-3.7', {commit}\ntokens = 100 * {value}"
LABELS = ("triton-3.6", "triton-3.7")


@pytest.mark.usefixtures("lives_in_process")
@pytest.mark.parametrize(
    ("value", "sentence", "code"),
    [
        ("(0.9 if label else 1)", "the change belongs to the labels", 3),
        ("(0.9 if commit else 1)", "the change belongs to the commits", 3),
        ("(0.8 if commit and label else 1)", "what the commits do depends on the label", 3),
        ("1", "no change was shown along either axis", 0),
    ],
)
def test_the_axis_is_named(kvtrail, declared, value: str, sentence: str, code: int) -> None:
    made = declared(TABLES, *(BENCH.format(commit=one, value=value) for one in (False, True)))
    said = kvtrail(made.toy, "swap", "HEAD~1", "HEAD", *LABELS)
    assert f"tokens: {sentence}" in said.text
    assert said.code == code
    assert len(said.record["results"]["cells"]) == 4
    if "labels" in sentence:
        assert said.answers["tokens by labels"]["effect"] == pytest.approx(-0.1, abs=0.005)


def test_one_label_twice_is_refused(kvtrail, declared) -> None:
    made = declared(TABLES, "pass", "pass # other")
    with pytest.raises(Refused, match="is both the old and the new label"):
        kvtrail(made.toy, "swap", "HEAD~1", "HEAD", "a", "a")
