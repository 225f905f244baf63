"""Peers: every engine gets the same model and prompts, and one that fails costs its row alone."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from toy_repository import ToyRepository
from typer.testing import CliRunner, Result

from asv_bench.cli.commands import build_app
from asv_bench.errors import Interrupted, MeasurementFailed, NothingMeasured, Refused
from asv_bench.git.repository import Repository
from asv_bench.output.record import REPOSITORY
from asv_bench.peers import lives
from asv_bench.peers.contest import find_peers, rest_table, speed_table
from asv_bench.peers.lives.life import PeerTask, live
from asv_bench.peers.model import likelihoods, put_on_disk, score
from asv_bench.subjects import choose
from asv_bench.workloads.named import Workload
from engine.errors import ModelError

MIXED = Workload("mixed", 5, 3, (1, 4, 9), 20, unique_prompts=True)
REPORTS = REPOSITORY / "reports" / "peers"
BROKEN = "raise RuntimeError('no such architecture')"


@pytest.fixture(autouse=True)
def drivers_and_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a life's own interpreter sees; rounds of an interrupted test are its own."""
    monkeypatch.setattr("asv_bench.measure.log.FOLDER", tmp_path / "kept")
    monkeypatch.setattr("asv_bench.session.session.WORKPLACE", tmp_path)
    monkeypatch.syspath_prepend(str(Path(lives.__file__).parent))
    monkeypatch.setenv("KVTRAIL_TREE", str(REPOSITORY))


def task_in(folder: Path, model: str = "random:gpt2-tiny") -> PeerTask:
    """A task that is in a file there, too."""
    file = folder / "task.json"
    put_on_disk(model, "auto", "cpu", str(folder / "model"), {str(file): [asdict(MIXED)]}, {})
    task = replace(PeerTask.read(str(file)), warmups=0, windows=1)
    file.write_text(json.dumps(asdict(task)))
    return task


def test_a_model_of_parts_that_other_engines_would_not_get_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="a gemma3_text, has local layers, norms behind its maps"):
        task_in(tmp_path, "random:gemma-tiny")
    with pytest.raises(ModelError, match="a decoder in plain torch can be made of models without"):
        score([[1, 2]], [[3]], model="random:gemma-tiny", dtype="float32", device="cpu")


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "qwen3-tiny"])
def test_engines_that_run_here_generate_the_same_tokens(name: str, tmp_path: Path) -> None:
    """Prompts of several lengths, and more requests than fit a batch."""
    from engine import Engine, EngineConfig, SamplingParams

    task = task_in(tmp_path, f"random:{name}")
    prompts, ids = task.demands["mixed"].prompts, {}
    for peer in ("kvtrail", "transformers-dynamic", "torch"):
        told = live(peer, task)
        ids[peer], figures = told["tokens"]["mixed"], told["figures"]["mixed"]
        seconds = figures["step_ms"][0] * MIXED.steps / 1e3
        assert figures["tokens_per_s"][0] == pytest.approx(5 * MIXED.new_tokens / seconds)
        assert told["versions"]["torch"]
    assert ids["transformers-dynamic"] == ids["torch"] == ids["kvtrail"]
    # A model that repeats one token would agree with a broken one.
    assert len(set(ids["kvtrail"][0])) > 5
    # And it is the model that its name means to the engine.
    engine = Engine(EngineConfig(model=f"random:{name}", device="cpu", prefix_cache=False))
    params = SamplingParams(max_new_tokens=MIXED.new_tokens, ignore_eos=True)
    own = [list(done.token_ids) for done in engine.generate(prompts, params)]
    assert own == ids["kvtrail"]
    # In double precision, too, all of them are the likeliest; another token is not.
    other = [list(tokens) for tokens in own]
    other[1][7] = (own[1][7] + 1) % 50
    asked = [(prompts, own), (prompts, other)]
    right, wrong = likelihoods(task.model, "float64", "cpu", asked)
    assert right == {"tokens": 100, "argmax": 1.0, "largest_gap": 0.0}
    assert wrong["argmax"] < 1
    assert wrong["largest_gap"] > 0


@pytest.mark.parametrize(("fault", "least"), [(1, 0.99), (2, 0.0)], ids=["right", "wrong"])
def test_a_wrong_rotary_base_in_half_precision_lowers_the_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: int, least: float
) -> None:
    """The ids that `run` leaves are those of a workload's check, several rows of the batch."""
    from kernels.attention.rotation import HeadRotation

    turned = HeadRotation.heads

    def heads(self: HeadRotation, *arguments: Any, **options: Any) -> Any:
        return turned(replace(self, positions=self.positions // fault), *arguments, **options)

    monkeypatch.setattr(HeadRotation, "heads", heads)
    record = tmp_path / "record.json"
    words = "run wide --quick --model random:llama-tiny --dtype float16 --repeat-runs 1 --json"
    done = CliRunner().invoke(build_app(), [*words.split(), str(record)])
    assert done.exit_code == 0, done.output
    ids = json.loads(record.read_text())["results"]["ids"]
    assert (ids["dtype"], ids["device"], len(ids["prompts"])) == ("float16", "cpu", 16)
    told = score(**ids)
    assert told["tokens"] == 256
    assert least <= told["argmax"] <= (1.0 if fault == 1 else 0.5)
    assert (told["largest_gap"] > 1) == (fault == 2)


@pytest.mark.thorough
def test_an_engine_that_is_faster_but_wrong_in_half_precision_is_named_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a clone with a slow base, of the base as it is, and of one that turns by half as much."""
    toy = ToyRepository(tmp_path / "clone")
    Repository(REPOSITORY).ask("clone", "--quiet", "--local", str(REPOSITORY), str(toy.root))
    engine, rotation = (
        toy.root / one for one in ("engine/engine.py", "kernels/attention/rotation.py")
    )
    right, fast = rotation.read_text(), engine.read_text()
    begin = "    def _advance(self) -> None:\n"
    slow = fast.replace(begin, f"{begin}        sum(range(200_000))\n")
    wrong = right.replace("F.embedding(self.positions,", "F.embedding(self.positions // 2,")
    assert wrong != right
    assert slow != fast
    toy.change("slow", {"engine/engine.py": slow})
    toy.change("the same", {"kernels/attention/rotation.py": f"{right}\n# No change.\n"})
    toy.change("wrong", {"engine/engine.py": fast, "kernels/attention/rotation.py": wrong})
    monkeypatch.setattr(choose, "REPOSITORY", toy.root)
    monkeypatch.chdir(toy.root)
    record = tmp_path / "record.json"
    words = "--workload wide --model random:llama-tiny --dtype float16 --margin 20 --pairs 10"

    def compared(head: str) -> tuple[int, str, dict[str, Any]]:
        done = CliRunner().invoke(
            build_app(), ["compare", "HEAD~2", head, *words.split(), "--json", str(record)]
        )
        results = json.loads(record.read_text())["results"]
        return done.exit_code, " ".join(done.output.split()), results

    code, said, results = compared("HEAD")
    assert (code, results["comparisons"][0]["verdict"]) == (6, "faster")
    assert [one["verdict"] for one in results["checks"]] == ["differs", "differs"]
    assert ", other result" in said
    assert "argmax: worse, 1 → 0.0" in said
    code, said, results = compared("HEAD~1")
    assert code in (0, 4)
    told = [(one["check"], one["verdict"]) for one in results["checks"]]
    assert told == [("argmax", "same"), ("largest_gap", "same")]
    assert "argmax: same result, in " in said


class Recorder:
    """Stands for another project's engine: keeps what it is told, generates tokens of its own."""

    graphs = SimpleNamespace(cudagraph_mode=Enum("Graphs", "PIECEWISE").PIECEWISE)
    llm_engine = SimpleNamespace(vllm_config=SimpleNamespace(compilation_config=graphs))
    server_args = SimpleNamespace(chunked_prefill_size=2048, attention_backend="fa3")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.told = {"model": arguments[0] if arguments else None, **options}

    def generate(self, prompts: Any = None, params: Any = None, **options: Any) -> list[Any]:
        asked = options.get("sampling_params", params)
        self.asked = [one if isinstance(one, dict) else vars(one) for one in asked]
        assert len(self.asked) == len(options.get("input_ids", prompts))
        answers = []
        for one in self.asked:
            ids = list(range(one.get("max_tokens") or one["max_new_tokens"]))
            if "cache_type" in self.told:  # mini-sglang
                ids.pop()
            answers.append(Answer(token_ids=ids, output_ids=ids, outputs=[Answer(token_ids=ids)]))
        return answers


class Answer(dict[str, Any]):
    """What attributes and keys give alike."""

    __getattr__ = dict.__getitem__


def live_with(
    patch: pytest.MonkeyPatch, folder: Path, name: str, **more: Any
) -> tuple[dict[str, Any], Recorder]:
    """A life of an engine whose modules all have the faces of a recorder, and that."""
    made: list[Recorder] = []

    def build(*arguments: Any, **options: Any) -> Recorder:
        made.append(Recorder(*arguments, **options, **more))
        return made[-1]

    for one in ("vllm", "sglang", "nanovllm", "minisgl", "minisgl.llm", "minisgl.core"):
        module = ModuleType(one)
        module.__dict__.update(SamplingParams=SimpleNamespace, LLM=build, Engine=build)
        patch.setitem(sys.modules, one, module)
    return live(name, task_in(folder)), made[0]


FAIR: dict[str, dict[str, Any]] = {
    "vllm": {"enable_prefix_caching": False, "max_num_seqs": 3, "max_model_len": 29},
    "sglang": {"disable_radix_cache": True, "cuda_graph_max_bs": 3, "context_length": 29},
    "nano-vllm": {"enforce_eager": False, "max_num_seqs": 3},
    "mini-sglang": {"cache_type": "naive", "cuda_graph_max_bs": 3},
}
CHOSEN = {
    "vllm": {"cudagraph_mode": "PIECEWISE"},
    "sglang": {"chunked_prefill_size": "2048", "attention_backend": "fa3"},
}


@pytest.mark.parametrize("name", FAIR)
def test_other_projects_are_asked_for_the_same_work(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts, peer = live_with(monkeypatch, tmp_path, name)
    assert peer.told.items() >= FAIR[name].items()
    assert str(tmp_path / "model") in peer.told.values()
    assert facts["figures"]["mixed"]["tokens_per_s"][0] > 0
    assert facts["chosen"] == CHOSEN.get(name, {})
    missing = 1 if name == "mini-sglang" else 0
    assert [len(ids) for ids in facts["tokens"]["mixed"]] == [MIXED.new_tokens - missing] * 5
    for params in peer.asked:
        assert params["ignore_eos"] is True
        assert params["temperature"] < 1e-4
        assert MIXED.new_tokens in (params.get("max_tokens"), params.get("max_new_tokens"))


def test_ranks_and_eight_bits_are_asked_of_kvtrail_and_of_vllm_by_their_own_flags(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = {"tensor_parallel_size": 2, "quantization": "fp8"}
    task = replace(task_in(tmp_path, "random:qwen3-tiny"), options=options)
    told = live("kvtrail", task)
    assert told["settings"].endswith(", tensor_parallel_size 2, quantization fp8")
    monkeypatch.setattr(sys.modules[__name__], "task_in", lambda _: task)
    facts, peer = live_with(monkeypatch, tmp_path, "vllm")
    assert peer.told.items() >= options.items()
    assert facts["settings"].endswith(", tensor_parallel_size 2, quantization fp8")
    # What kvtrail calls fp8-dynamic is fp8 there.
    task = replace(task, options={"quantization": "fp8-dynamic"})
    assert live_with(monkeypatch, tmp_path, "vllm")[1].told["quantization"] == "fp8"
    # Others cannot be asked for it.
    vllm = python_of(tmp_path, "")
    found, absent = find_peers([f"vllm={vllm}", "torch"], {"tensor_parallel_size": 2})
    assert [*found] == ["kvtrail", "vllm"]
    assert absent == ["torch: left out, as it is not asked for tensor_parallel_size"]


def test_a_run_that_is_cut_short_is_no_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts, _ = live_with(monkeypatch, tmp_path, "nano-vllm", cache_type="one token less")
    assert "got 0 tokens where 1 were asked for" in facts["failed"]["mixed"]


def python_of(folder: Path, vllm: str) -> str:
    """A Python that finds a package vllm of this text in `folder`."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (folder / "vllm.py").write_text(vllm)
    return str(python)


def test_peers_are_found_by_name_or_by_their_interpreter(tmp_path: Path) -> None:
    other = python_of(tmp_path, "raise RuntimeError('not to be imported')")
    interpreters, absent = find_peers(["torch", f"vllm={other}", f"sglang={other}"], {})
    assert interpreters == {**dict.fromkeys(("kvtrail", "torch"), sys.executable), "vllm": other}
    assert absent == ["sglang: absent, its Python has no package sglang"]
    with pytest.raises(Refused, match="no peer 'vlm'; there are kvtrail, transformers-dynamic"):
        find_peers(["vlm"], {})
    with pytest.raises(Refused, match="nowhere, which is to run vllm, is no file"):
        find_peers(["vllm=nowhere"], {})
    done = CliRunner().invoke(build_app(), ["peers", "--quick", "--peer", "sglang"])
    assert isinstance(done.exception, NothingMeasured)
    assert "sglang: absent" in done.output


def rows_of(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((REPORTS / f"{name}.json").read_text())["results"][
        "rows"
    ]
    return rows


@pytest.mark.parametrize("name", sorted(page.stem for page in REPORTS.glob("*.md")))
def test_committed_records_are_shown_as_on_their_pages(name: str) -> None:
    page = (REPORTS / f"{name}.md").read_text().splitlines()
    table = speed_table(rows_of(name), "")
    for row in table.rows:
        texts = [cell.plain.partition("\n")[0] for cell in table.cells(row)]
        assert any(all(text in line for text in texts) for line in page)


def test_the_tokens_of_a_record_are_told_where_it_has_them() -> None:
    rows = rows_of("h100-scheduler")
    # It tells otherwise how right tokens are.
    assert rest_table(rows).to_json()[0]["tokens"] is None
    rows[0] |= {"tokens": {"tokens": 6144, "argmax": 0.888, "largest_gap": 0.59}}
    rows[0] |= {"chosen": {"batched_tokens": "8192"}}
    first = rest_table(rows).to_json()[0]
    assert first["tokens"] == "88.8% of 6144, gap 0.59"
    assert first["settings"].startswith("CUDA graphs, no prefix cache; batched_tokens 8192, torch ")


def run_peers(*arguments: str, folder: Path, python: str) -> tuple[Result, dict[str, Any]]:
    """Run the command on a tiny model; the Python of vLLM imports it from `python`."""
    other, record = python_of(folder, python), folder / "peers.json"
    given = ["peers", "--quick", "--model", "random:qwen3-tiny", "--json", str(record)]
    given += ["--peer", f"vllm={other}", "--folder", str(folder), *arguments]
    done = CliRunner().invoke(build_app(), given)
    return done, json.loads(record.read_text()) if record.is_file() else {}


@pytest.mark.thorough
def test_an_interrupted_command_goes_on_with_the_rounds_that_were_over(tmp_path: Path) -> None:
    """As by Ctrl-C, in the second round of an engine whose tokens are all 1.

    It starts once a round for all workloads of a model.
    """
    peer = """
        import os, signal, time
        from types import SimpleNamespace as Any
        SamplingParams = Any
        starts = os.environ["PEERS_FOLDER"] + "/../starts"
        open(starts, "a").write("x")
        class LLM:
            def __init__(self, **options):
                self.runs = 0
                if len(open(starts).read()) == 2:
                    os.kill({pid}, signal.SIGTERM)
                    time.sleep(60)
            def generate(self, prompts, params, use_tqdm):
                self.runs += 1
                time.sleep(0.01 * self.runs)
                return [Any(outputs=[Any(token_ids=[1] * one.max_tokens)]) for one in params]
    """
    python = dedent(peer).replace("{pid}", str(os.getpid()))
    page, drawing = tmp_path / "peers.md", tmp_path / "peers.svg"
    arguments = ["--workloads", "single,wide", "--peer", "torch", "--rounds", "2"]
    arguments += ["--markdown", str(page), "--svg", str(drawing)]
    done, told = run_peers(*arguments, folder=tmp_path, python=python)
    assert isinstance(done.exception, Interrupted)
    assert "1 of 2 rounds are kept. The same command goes on with them: " in str(done.exception)
    assert [row["lives"] for row in told["results"]["rows"]] == [1] * 6
    assert told["results"]["outcome"] == "interrupted"
    # What there is by then is shown.
    assert page.read_text().count("| wide-quick | torch |") == 2
    # A single life has its windows for a range.
    low, high = told["results"]["rows"][-1]["step_ms_range"]
    assert high > low
    [before] = told["samples"]

    done, told = run_peers(*arguments, folder=tmp_path, python=python)
    assert done.exit_code == 0, done.output + repr(done.exception)
    assert (tmp_path / "starts").read_text() == "x" * 3
    rows = {row["engine"]: row for row in told["results"]["rows"] if "wide" in row["workload"]}
    assert [row["lives"] for row in rows.values()] == [2] * 3
    assert rows["torch"]["tokens"] == rows["kvtrail"]["tokens"]
    assert rows["kvtrail"]["tokens"]["argmax"] == 1
    assert rows["vllm"]["tokens"]["argmax"] < 0.5
    assert rows["torch"]["times"]["low"] <= rows["torch"]["times"]["estimate"]
    assert rows["kvtrail"]["startup_s"] > 0.1
    assert rows["kvtrail"]["peak_rss_bytes"] > 2**26
    [sample] = told["samples"]
    assert sample["rounds"][0] == before["rounds"][0]
    life = sample["rounds"][0]["torch"]
    assert len(life["figures"]["wide-quick"]["step_ms"]) == 3
    assert life["cell"]["packages"]["torch"]
    assert life["cell"]["variables"]["DO_NOT_TRACK"] == "1"
    # They take turns, back and forth.
    engines = ["kvtrail", "torch", "vllm"]
    for of_round, order in zip(sample["rounds"], (engines, engines[::-1]), strict=True):
        assert sorted(of_round, key=lambda name: of_round[name]["reading"]["started_at"]) == order
    assert page.read_text().count("| wide-quick | torch |") == 2
    assert "torch" in drawing.read_text()
    # The next command begins anew.
    [kept] = (tmp_path / "kept").iterdir()
    assert "finished" in kept.read_text().splitlines()[-1]


@pytest.mark.thorough
def test_an_engine_that_fails_costs_its_row_and_an_only_one_the_command(tmp_path: Path) -> None:
    done, told = run_peers("--workloads", "single", folder=tmp_path, python=BROKEN)
    assert isinstance(done.exception, MeasurementFailed)
    [note] = told["notes"]
    assert note.startswith("vllm on single-quick is left out: it ended with exit code 1: ")
    assert "no such architecture" in note
    assert [row["engine"] for row in told["results"]["rows"]] == ["kvtrail"]
