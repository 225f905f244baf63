"""What asked a server: in the cell, hashed, and where it changes a history begins a new series."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository

from asv_bench.explain.clue import cell_clues
from asv_bench.measure.software import Software, differences
from asv_bench.measure.watched import Watched

TABLES = """
    [subject]
    name = "served"
    pinned = ["client.py"]

    [server]
    start = "sh bench.py"
    ready = {{ regex = "ready" }}

    [client]
    run = "{run}"
    warmup = 0
    windows = 1

    [metrics.step_ms]
    path = "step_ms"
    unit = "ms"
    """
SERVER = "echo ready\nexec sleep 60\n# {}\n"
CLIENT = """
import os, time
time.sleep(0.05)
open(os.environ["KVTRAIL_RESULT"], "w").write('{"step_ms": 5.0%d}' % (os.getpid() % 10))
"""
SETUP = r"""
ln -s {env}/bin/python $KVTRAIL_OUT/python
mkdir $KVTRAIL_OUT/dep.dist-info
printf "Metadata-Version: 2.1\nName: dep\nVersion: 0.$(date +%s%N)\n" \
    > $KVTRAIL_OUT/dep.dist-info/METADATA
"""


class Asked:
    """A repository of servers that a Python of its own asks, in which a package can be put."""

    def __init__(self, folder: Path) -> None:
        self.env = folder / "env"
        command = [sys.executable, "-m", "venv", "--without-pip", self.env]
        subprocess.run(command, check=True)
        [self.packages] = self.env.glob("lib/python*/site-packages")
        self.run = f"{self.env}/bin/python client.py"
        servers = [SERVER.format(number) for number in range(4)]
        self.repository = DeclaredRepository.make(folder / "toy", TABLES.format(run=self.run))
        self.repository.begin("bench.py", *((one, "a server") for one in servers))
        self.write("client.py", CLIENT)

    def write(self, name: str, text: str) -> None:
        (self.repository.root / name).write_text(text)

    def install(self, name: str, version: str) -> None:
        for old in self.packages.glob(f"{name}-*"):
            (old / "METADATA").unlink()
            old.rmdir()
        info = self.packages / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def cell(self, word: str = "HEAD") -> Software:
        """What a commit or label runs with, by a first life."""
        subject = self.repository.subject
        with subject.pairs() as source:
            source.prepare(subject.resolve(word).hash)
            [found] = subject.cells.values()
        return found


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return Asked(tmp_path)


def test_the_cell_says_what_asked_the_server_and_hashes_it(asked: Asked) -> None:
    asked.install("toybench", "1.0")
    cell = asked.cell()
    client = cell.to_json()["client"]
    assert cell.to_json()["interpreter"] is None, "the server runs no Python"
    assert (client["interpreter"], client["packages"]) == ("python", {"toybench": "1.0"})
    assert set(client["programs"]) == {"python", "client.py"}
    assert str(asked.env) not in str(client)
    assert asked.cell().client == cell.client, "another life of the same"
    hashes = [client["hash"]]
    asked.install("toybench", "1.1")
    hashes.append(asked.cell().client.hash)
    asked.write("client.py", CLIENT + "# other\n")
    hashes.append(asked.cell().client.hash)
    assert len(set(hashes)) == 3


def test_a_client_that_nobody_saw_is_the_one_that_its_line_calls(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = asked.cell().client
    monkeypatch.setattr(Watched, "_note", lambda *_: None)
    assert asked.cell().client == seen


def test_what_setup_or_the_commit_made_of_the_client_is_no_other_client(asked: Asked) -> None:
    run = "$KVTRAIL_OUT/python client.py bench.py --log $KVTRAIL_SUBJECT/said.log"
    asked.write("setup.sh", SETUP.format(env=asked.env))
    keys = """env = { PYTHONPATH = "$KVTRAIL_OUT" }
    setup = "sh $KVTRAIL_SUBJECT/setup.sh"
    pinned"""
    tables = TABLES.format(run=f"touch $KVTRAIL_SUBJECT/said.log; {run}")
    asked.repository.declare(tables.replace("pinned", keys))
    told = [asked.cell(word).client for word in ("HEAD~1", "HEAD", "HEAD")]
    assert {tuple(sorted(one.programs)) for one in told if one} == {("client.py", "touch")}
    assert len({one.packages["dep"] for one in told if one}) == 2, "of two commits"
    assert len({one.hash for one in told if one}) == 1


def test_a_release_of_the_project_in_an_environment_of_the_client_is_a_part_of_it(
    asked: Asked,
) -> None:
    asked.repository.change("name it", {"setup.cfg": "[metadata]\nname = toybench\n"})
    asked.install("toybench", "1.0")
    client = asked.cell().client
    assert client is not None
    assert client.packages == {"toybench": "1.0"}


def test_other_clients_of_two_ends_are_named_before_the_verdict() -> None:
    base, head = (
        Software(
            "python",
            {"numpy": version},
            {},
            client=Software("python", {"numpy": version, "bench": version}, {}, {}, {"b": version}),
        )
        for version in ("1", "2")
    )
    assert differences(base, head) == [
        "Base and head ran with other packages: numpy 1 → 2.",
        "Other clients asked base and head: bench 1 → 2, another b.",
    ]
    assert differences(base, base) == []
    assert [one.sentence for one in cell_clues(base, head)] == [
        "Packages have other versions: numpy 1 → 2",
        "Another client asks: bench 1 → 2, another b",
    ]


@pytest.mark.thorough
@pytest.mark.usefixtures("asks_for_packages")
def test_a_history_begins_anew_where_the_client_changed_and_says_so(
    kvtrail, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, kept = asked.repository, tmp_path / "kept"
    words = ("--rounds", "1", "--results", str(kept))
    asked.install("toybench", "1.0")
    first = kvtrail(made, "history", "HEAD~3..HEAD~1", *words)
    assert first.record["results"]["new_series"] == []
    asked.install("toybench", "1.1")
    monkeypatch.setenv("KVTRAIL_IMAGE", "bench:2")
    second = kvtrail(made, "history", "HEAD~1..HEAD", *words)
    at, changed = made.git("rev-parse", "HEAD"), "client toybench 1.0 → 1.1, image"
    [begun] = second.record["results"]["new_series"]
    assert (begun["commit"], begun["benchmarks"]) == (at, ["step_ms"])
    sentence = f"a new series begins at {at[:8]}, as this changed: {changed}"
    assert sentence in second.text
    assert second.record["machine"]["image"] == "bench:2"
    found = kvtrail(made, "changes", "--no-confirm", "--results", str(kept))
    assert sentence in found.text
    assert found.record["results"]["new_series"] == [begun]
    assert sentence in (kept / "pages" / "index.html").read_text()
    # A history that knew no clients is read, and is not mixed with what is measured now.
    for path in (kept / "asv").glob("*/*-host-*.json"):
        told = json.loads(path.read_text())
        if told["params"].pop("image", None) is None:
            del told["params"]["client"]
            path.write_text(json.dumps(told))
    found = kvtrail(made, "changes", "--no-confirm", "--results", str(kept))
    assert "as this changed: client not noted → " in found.text
