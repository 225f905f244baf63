"""`kvtrail.toml`: metrics, setup, labels and failures, seen from outside."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import textwrap
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository, alive, noisy, own_seconds

from asv_bench.errors import Refused
from asv_bench.output.issue_text import repeating
from asv_bench.output.record import Record

TABLES = """
    [subject]
    name = "toy"
    measure = "python bench.py"

    [metrics.tpot_ms]
    path = "tpot_ms"
    unit = "ms"
    """


def tpot(milliseconds: float) -> str:
    return noisy("tpot_ms", milliseconds)


def test_a_metric_out_of_the_result_is_compared(kvtrail, declared) -> None:
    made = declared(TABLES, tpot(5.0), tpot(5.3))
    said = kvtrail(made.toy, "compare", "HEAD~1", "HEAD")
    assert (said.code, said.verdicts) == (3, {"tpot_ms": "slower"}), said.text
    assert said.answers["tpot_ms"]["effect"] == pytest.approx(0.06, abs=0.005)
    assert said.answers["tpot_ms"]["head_value"] == pytest.approx(5.3, rel=0.002)
    assert "also measured, not judged: wall_s" in said.text
    others = said.record["results"]["others"]
    assert set(others) == {"wall_s", "peak_rss_bytes"}
    # Of the command, and not of the larger process that started it.
    assert all(4e6 < value < 40e6 for one in others["peak_rss_bytes"].values() for value in one)


@pytest.mark.usefixtures("lives_in_process")
@pytest.mark.parametrize(
    ("unit", "better", "values", "word"),
    [
        ("ms", "lower", (5, 6), "slower"),
        ("tokens/s", "higher", (6, 5), "slower"),
        ("MiB", "lower", (5, 6), "larger"),
        ("GB", "higher", (6, 5), "smaller"),
        ("points", "higher", (6, 5), "worse"),
        ("points", "lower", (6, 5), "better"),
    ],
)
def test_sentences_are_in_the_words_and_with_the_sign_of_the_metric(
    kvtrail, declared, unit: str, better: str, values: tuple[float, float], word: str
) -> None:
    tables = f"""{TABLES.replace('"ms"', f'"{unit}"')}
    better = "{better}"
    """
    benches = [f"tpot_ms = {values[number > 2]} # {number}" for number in range(6)]
    made = declared(tables, *benches)
    verdict = "faster" if word == "better" else "slower"
    effect = values[1] / values[0] - 1
    said = kvtrail(made.toy, "compare", "HEAD~5", "HEAD")
    assert f"tpot_ms: {word} ({effect:+.0%}"[: len(word) + 12] in said.text
    assert said.verdicts == {"tpot_ms": verdict}
    searched = ("bisect", "HEAD~5", "HEAD", *(["--improvement"] if word == "better" else []))
    found = kvtrail(made.toy, *searched)
    assert ": why: kvtrail explain " in found.text
    plain = word in ("slower", "faster")
    first = f"first {word} commit" if plain else f"first commit with {word} tpot_ms"
    assert f"{first}: {made.toy.git('rev-parse', '--short=8', 'HEAD~2')}" in found.text
    signs = {float(one) > 0 for one in re.findall(r"[0-9a-f]{8} +([+-][0-9.]+) % ", found.text)}
    assert signs >= {effect > 0}
    judged = kvtrail(made.toy, "fixed", "HEAD~3", "HEAD~2", "HEAD~1").text
    assert f"{word} than its parent" in judged
    for text in (said.text, found.text, judged):
        told = text.replace("slower, faster", "").replace("--improvement", "")
        assert plain or not re.search("slower|faster", told), told


@pytest.mark.usefixtures("lives_in_process")
def test_as_few_pairs_as_are_advised_tell_sides_apart_that_do_not_overlap(
    kvtrail, declared
) -> None:
    made = declared(TABLES, "tpot_ms = 5", "tpot_ms = 5.0125")
    few = ("compare", "HEAD~1", "HEAD", "--margin", "0.1", "--pairs")
    with pytest.raises(Refused) as refused:
        kvtrail(made.toy, *few, "5")
    advised = re.search(r"take at least (\d+)", str(refused.value))[1]
    said = kvtrail(made.toy, *few, "6")
    answer = said.answers["tpot_ms"]
    # The least that the ranks of six and six can say.
    assert (answer["verdict"], answer["p"]) == ("inconclusive", pytest.approx(2 / 924))
    assert "the two do not overlap, but after 6 pairs only a gap as wide as either" in said.text
    assert kvtrail(made.toy, *few, advised).verdicts == {"tpot_ms": "slower"}


@pytest.mark.usefixtures("lives_in_process")
@pytest.mark.parametrize(
    ("question", "shift"),
    [(("compare", "HEAD~1"), 0.0026), (("fixed", "HEAD~2", "HEAD~1"), 0.007)],
)
def test_an_interval_within_the_margin_that_is_not_enough_says_so(
    kvtrail, declared, question: tuple[str, ...], shift: float
) -> None:
    benches = [f"tpot_ms = {value}" for value in (5, 6, 6 + shift)]
    made = declared(TABLES, *benches)
    rounds = "--rounds" if question[0] == "fixed" else "--pairs"
    said = kvtrail(made.toy, *question, "HEAD", "--margin", "0.11", rounds, "12")
    answer = list(said.answers.values())[-1]
    assert answer["verdict"] == "inconclusive"
    assert max(map(abs, answer["interval"])) < 0.0011
    assert "the interval lies within the margin of 0.11 %, and to be called" in said.text


@pytest.mark.thorough
def test_several_metrics_with_a_direction_and_a_margin_of_their_own(kvtrail, declared) -> None:
    tables = f"""{TABLES}
    [metrics.throughput]
    regex = 'throughput: ([0-9.]+) tok/s'
    better = "higher"
    margin = 10

    [metrics.first]
    path = "nested.0.first.token"
    better = "higher"
    """
    bench = """
        import json, os, random
        noise = lambda value: value * (1 + random.uniform(-0.001, 0.001))
        for _ in range(3):
            print(f"throughput: {{noise({throughput}):.4f}} tok/s")
        with open(os.environ["KVTRAIL_RESULT"], "w") as file:
            json.dump(
                {{
                    "tpot_ms": [noise(5.0), noise(5.0)],
                    "nested": [{{"first.token": noise({first})}}],
                }},
                file,
            )
        """
    made = declared(
        tables,
        bench.format(throughput=100, first=10),
        bench.format(throughput=95, first=9),
    )
    said = kvtrail(made.toy, "compare", "HEAD~1", "HEAD")
    wanted = {"tpot_ms": "equivalent", "throughput": "equivalent", "first": "slower"}
    assert (said.code, said.verdicts) == (3, wanted), said.text
    assert said.answers["first"]["effect"] == pytest.approx(-0.1, abs=0.005)
    samples = [one["base"]["samples"] for one in said.record["samples"]]
    assert {len(one) for one in samples} == {1, 2, 3}
    assert "10% of throughput" in said.text.replace(" %", "%")
    chosen = kvtrail(made.toy, "compare", "HEAD~1", "HEAD", "--metric", "^peak_rss", "-b", "first")
    assert set(chosen.verdicts) == {"peak_rss_bytes", "first"}
    assert re.search(r"not judged: tpot_ms [0-9.]+ ms → [0-9.]+ ms ", chosen.text)


@pytest.mark.parametrize(
    ("bench", "code", "words"),
    [
        ("print('hello')", 5, "it left no file at $KVTRAIL_RESULT"),
        (noisy("other", 1.0), 5, "its JSON has no tpot_ms"),
        (
            "open(__import__('os').environ['KVTRAIL_RESULT'], 'w').write('{\"tpot_ms\": NaN}')",
            1,
            "nan",
        ),
        (tpot(0.0), 1, "only positive figures can be compared"),
        ("open(__import__('os').environ['KVTRAIL_RESULT'], 'w').write('{')", 1, "is no JSON"),
        ("import sys; print('last words'); sys.exit(7)", 1, "exit code 7: last words"),
        ("import sys; print('too old'); sys.exit(125)", 5, "exit code 125: too old"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 1, "signal 11 ended it"),
    ],
)
def test_a_life_that_gives_no_figure_is_a_sentence(
    kvtrail, declared, bench: str, code: int, words: str
) -> None:
    made = declared(TABLES, tpot(5.0), bench)
    said = kvtrail(made.toy, "compare", "HEAD~1", "HEAD")
    assert said.code == code, said.text
    assert words in said.text
    assert made.toy.git("rev-parse", "--short=8", "HEAD") in said.text
    assert "equivalent" not in said.verdicts.values()


def test_a_life_that_hangs_is_ended_with_all_that_it_started(kvtrail, declared) -> None:
    tables = TABLES.replace("[metrics", "timeout_s = 1\n    [metrics", 1)
    orphan = own_seconds()
    hanging = f"""
        import subprocess, time
        for session in (False, True):
            subprocess.Popen(["sleep", "{orphan}"], start_new_session=session)
        print("about to hang", flush=True)
        time.sleep(600)
        """
    made = declared(tables, tpot(5.0), hanging)
    said = kvtrail(made.toy, "compare", "HEAD~1", "HEAD")
    assert said.code == 1
    assert "it did not end within 1 s: about to hang" in said.text
    assert not alive(orphan)


def test_children_that_are_left_behind_are_ended(kvtrail, declared) -> None:
    orphan = own_seconds()
    leaving = (
        tpot(5.0)
        + f"""
        import subprocess
        for session in (False, True):
            subprocess.Popen(["sleep", "{orphan}"], start_new_session=session)
            subprocess.Popen(["sleep", "{orphan}"], start_new_session=session, env={{}})
        # As a daemon begins: no parent, session, variable or folder of this life.
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.chdir("/")
                os.execve("/bin/sleep", ["sleep", "{orphan}"], {{}})
            os._exit(0)
        """
    )
    made = declared(TABLES, leaving)
    kvtrail(made.toy, "compare", "HEAD", "HEAD", "--anyway")
    assert not alive(orphan)


SETUP = """
    [subject]
    name = "toy"
    setup = "sh build.sh && cp value $KVTRAIL_OUT/value"
    measure = "python bench.py"
    env = { VALUE = "$KVTRAIL_OUT/value", KIND = "${KVTRAIL_LABEL}" }
    pinned = ["build.sh"]

    [metrics.tpot_ms]
    path = "tpot_ms"
    """
READS = noisy("tpot_ms", 'float(open(os.environ["VALUE"]).read())')


def test_a_setup_is_made_once_for_each_tree(kvtrail, tmp_path: Path) -> None:
    made = DeclaredRepository.make(
        tmp_path / "toy ümlaut", SETUP, READS, READS.replace("import", "import sys,")
    )
    made_at = tmp_path / "made"
    (made.root / "build.sh").write_text(f"echo made >> '{made_at}'; echo 5.0 > value\n")
    said = kvtrail(made.toy, "compare", "HEAD~1", "HEAD")
    assert (said.code, said.verdicts) == (0, {"tpot_ms": "equivalent"}), said.text
    assert made_at.read_text().split() == ["made"] * 2
    kvtrail(made.toy, "compare", "HEAD~1", "HEAD", "--fresh", "--pairs", "7")
    assert made_at.read_text().split() == ["made"] * 2
    # A pinned file is part of what a setup depends on.
    (made.root / "build.sh").write_text(f"echo made >> '{made_at}'; echo 6.0 > value\n")
    kvtrail(made.toy, "compare", "HEAD~1", "HEAD", "--fresh", "--pairs", "7")
    assert made_at.read_text().split() == ["made"] * 4


def test_pairs_of_an_edited_benchmark_are_not_gone_on_with(kvtrail, declared) -> None:
    tables = TABLES.replace("[metrics", 'pinned = ["bench.py"]\n    [metrics', 1)
    made = declared(tables, tpot(5.0))
    first = kvtrail(made.toy, "compare", "HEAD", "HEAD", "--anyway").record["settings"]
    (made.root / "bench.py").write_text(textwrap.dedent(tpot(6.0)))
    said = kvtrail(made.toy, "compare", "HEAD", "HEAD", "--anyway")
    assert said.record["settings"]["fixed"] != first["fixed"]
    assert said.answers["tpot_ms"]["base_value"] == pytest.approx(6.0, rel=0.01)
    (made.root / "bench.py").write_text("print('another')")
    with pytest.raises(Refused, match="no pairs of the same compare"):
        kvtrail(made.toy, "compare", "HEAD", "HEAD", "--anyway", "--resume")


@pytest.mark.parametrize(("exit_with", "code"), [(1, 1), (125, 5)])
def test_a_setup_that_fails_is_quoted_and_not_kept(
    kvtrail, declared, exit_with: int, code: int
) -> None:
    made = declared(SETUP, READS, READS.replace("import", "import sys,"))
    (made.root / "build.sh").write_text(f"echo no compiler; exit {exit_with}\n")
    said = kvtrail(made.toy, "compare", "HEAD~1", "HEAD")
    assert said.code == code
    assert f"its setup: it ended with exit code {exit_with}: no compiler" in said.text
    (made.root / "build.sh").write_text("echo 5.0 > value\n")
    assert kvtrail(made.toy, "compare", "HEAD~1", "HEAD").code == 0


LABELS = """
    [subject]
    name = "toy"
    measure = "python bench.py"

    [metrics.tpot_ms]
    path = "tpot_ms"

    [axis]
    kind = "labels"
    labels = ["transformers-4.55", "transformers-4.56", "transformers-4.57"]
    """


def test_labels_are_compared_in_the_working_trees_files(kvtrail, declared) -> None:
    bench = noisy("tpot_ms", '(5.5 if os.environ["KVTRAIL_LABEL"].endswith("7") else 5.0)')
    made = declared(LABELS, "committed = 'not this one'")
    (made.root / "bench.py").write_text(bench.replace("\n        ", "\n"))
    said = kvtrail(made.toy, "compare", "transformers-4.55", "transformers-4.57")
    assert (said.code, said.verdicts) == (3, {"tpot_ms": "slower"}), said.text
    assert "transformers-4.57 against transformers-4.55" in said.text
    options = ("--base", "transformers-4.55", "--head", "transformers-4.56", "--axis", "labels")
    os.utime(made.root / "bench.py", (2e9, 2e9))  # a fresh clone dates it anew
    again = kvtrail(made.toy, "compare", *options)
    assert again.verdicts == {"tpot_ms": "equivalent"}
    assert again.record["settings"]["fixed"] == said.record["settings"]["fixed"]
    with pytest.raises(Refused, match=r"'4\.58' is none of the labels transformers-4\.55"):
        kvtrail(made.toy, "compare", "transformers-4.55", "4.58")


SECRET_NAMES = (
    *("DB_PASSWD", "PGPASS", "PGPASSWORD", "SSHPASS", "AWS_CREDENTIALS", "AWS_ACCESS_KEY_ID"),
    *("HF_TOKEN", "VLLM_API_KEY", "OPENAI_APIKEY", "apiKey", "AccessToken", "TLS_CERT"),
    *("AZURE_SAS", "SENTRY_DSN", "SSH_AUTH", "COOKIE", "BEARER2", "CLIENT_SECRET1", "SIGNATURE"),
    "ACCESS_ID",
)
KNOWN_VALUES = {
    "NUMBER_PASSWORD": "314159",
    "DATABASE_URL": "postgres://me:hunter2@host/db",
    "PIP_INDEX_URL": "https://hunter2@host/simple",
    "GIVEN": "ghp_hunter2" + 30 * "x",
}
PLAIN = {
    **{"TOKENIZERS_PARALLELISM": "false", "MAX_NEW_TOKENS": "16", "MAX_TOKEN": "32768"},
    **{"KEYBOARD": "us", "NUM_KEYS": "7", "BYPASS": "all", "EOS_TOKEN": "</s>", "MONKEY": "see"},
    **{"GIT_AUTHOR_NAME": "A", "SORT_KEY": "name", "USE_AUTH_TOKEN": "true", "API_KEY_OF": "$KEY"},
    **{"URL": "http://host:80/a@b"},
}


def test_no_secret_is_recorded_and_no_other_variable_left_out(
    kvtrail, declared, tmp_path: Path
) -> None:
    env = {**dict.fromkeys(SECRET_NAMES, "hunter2"), **KNOWN_VALUES, **PLAIN}
    listed = ", ".join(f'{name} = "{value}"' for name, value in env.items())
    line = "A_TOKEN=hunter2 python bench.py --api-key hunter2 --password=hunter2 --max-tokens 5"
    line += " -H 'Authorization: Token hunter2' --url ws://u:hunter2@host -d \"{'key': 'hunter2'}\""
    tables = TABLES.replace('"python bench.py"', f"'''{line}'''\n    env = {{ {listed} }}")
    made = declared(tables, tpot(5.0), tpot(5.3))
    said = kvtrail(made.toy, "compare", "HEAD~1", "HEAD", "--markdown", str(tmp_path / "page.md"))
    assert said.code == 3, said.text
    for cell in said.record["results"]["cells"].values():
        assert PLAIN.items() <= cell["variables"].items()
        assert not set(cell["variables"]) & {*SECRET_NAMES, *KNOWN_VALUES}
    assert "--max-tokens 5" in said.record["settings"]["subject"]["command"]
    for text in (json.dumps(said.record), (tmp_path / "page.md").read_text()):
        assert not re.search("hunter2|314159", text)


def test_no_secret_of_a_command_line_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["compare", "a", "b", "--", "sh", "b.sh", "--api-key", "hunter2 3", "A_PASS=hunter2 x"]
    monkeypatch.setattr(sys, "argv", ["kvtrail", *words])
    wanted = [*words[:-2], "***", "A_PASS=*** x"]
    assert Record("compare", {}).to_json()["argv"] == wanted
    assert repeating(words, {}) == shlex.join(["kvtrail", *wanted])


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ("[subject", "kvtrail.toml: "),
        ('[subject]\nname = "toy"\nmeasure = "x"\nrepository = "/"', "is no git repository"),
        ('[subject]\nname = "toy"\nmeasure = "x"\ndevices = 1', "there is no"),
        (f'[subject]\nname = "toy"\nmeasure = "x"\ncores = {10 * (os.cpu_count() or 1)}', "cores"),
    ],
)
def test_a_file_that_says_something_wrong_is_refused(
    kvtrail, declared, monkeypatch: pytest.MonkeyPatch, tables: str, words: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    made = declared(tables, "pass")
    with pytest.raises(Refused, match=re.escape(words)):
        kvtrail(made.toy, "compare", "HEAD", "HEAD")


def test_the_file_is_found_by_its_name_and_the_same_commit_is_not_slower(
    kvtrail, declared, tmp_path: Path
) -> None:
    made = declared(TABLES, tpot(5.0))
    assert kvtrail(made.toy, "compare", "HEAD", "HEAD").verdicts == {"tpot_ms": "same"}
    (made.root / "kvtrail.toml").rename(tmp_path / "elsewhere.toml")
    text = (tmp_path / "elsewhere.toml").read_text()
    (tmp_path / "elsewhere.toml").write_text(
        text.replace('name = "toy"', 'name = "toy"\nrepository = "toy"').replace(
            "python bench.py", "test -f $KVTRAIL_SUBJECT/elsewhere.toml && python bench.py"
        )
    )
    named = ("--subject", str(tmp_path / "elsewhere.toml"))
    assert kvtrail(made.toy, "compare", "HEAD", "HEAD", *named).verdicts == {"tpot_ms": "same"}
    said = kvtrail(made.toy, "compare", "HEAD", "HEAD", *named, "--anyway")
    assert (said.code, said.verdicts) == (0, {"tpot_ms": "equivalent"}), said.text


@pytest.mark.usefixtures("lives_in_process")
def test_the_label_is_found(kvtrail, declared) -> None:
    bench = "tpot_ms = 5.3 if label.endswith('6') else 5.0"
    tables = LABELS.replace('["transformers-4.55", ', '["transformers-4.54", "transformers-4.55", ')
    made = declared(tables.replace(', "transformers-4.57"', ""), bench)
    said = kvtrail(made.toy, "bisect", "transformers-4.54", "transformers-4.56")
    assert said.code == 3, said.text
    assert "first slower label: transformers-4.56" in said.text


def test_what_is_mended_outside_the_repository_is_bisected_anew(
    kvtrail, declared, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = f"import os; os.environ['INSTALLED']\n{textwrap.dedent(noisy('tpot_ms', 5.0))}"
    made = declared(TABLES, bench, f"{bench}# The same.")
    failed = kvtrail(made.toy, "bisect", "HEAD~1", "HEAD")
    assert failed.code == 1
    assert "KeyError: 'INSTALLED'" in failed.text
    monkeypatch.setenv("INSTALLED", "now")
    assert kvtrail(made.toy, "bisect", "HEAD~1", "HEAD").code == 0
