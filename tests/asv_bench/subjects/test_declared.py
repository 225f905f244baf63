"""`kvtrail.toml`: metrics, setup, labels and failures, seen from outside."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from functools import partial
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository, alive, along, in_ms, noisy, own_seconds

from asv_bench.errors import Refused
from asv_bench.measure.samples import CommitUnusable
from asv_bench.output.issue_text import repeating
from asv_bench.output.record import Record

TABLES = in_ms("tpot_ms")
tpot = partial(noisy, "tpot_ms")


def test_a_metric_out_of_the_result_is_compared(kvtrail, declared) -> None:
    made = declared(TABLES, tpot(5.0), tpot(5.3))
    said = kvtrail(made, "compare", "HEAD~1", "HEAD")
    assert (said.code, said.verdicts) == (3, {"tpot_ms": "slower"}), said.text
    assert said.answers["tpot_ms"]["effect"] == pytest.approx(0.06, abs=0.005)
    assert said.answers["tpot_ms"]["head_value"] == pytest.approx(5.3, rel=0.002)
    others = said.record["results"]["others"]
    assert set(others) == {"wall_s", "peak_rss_bytes", "cpu_s"}
    # Of the command, and not of the larger process that started it.
    assert all(4e6 < value < 40e6 for one in others["peak_rss_bytes"].values() for value in one)


@pytest.mark.usefixtures("lives_in_process")
@pytest.mark.parametrize(
    ("unit", "better", "values", "word"),
    [
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
    tables = TABLES.replace('unit = "ms"', f'unit = "{unit}"\n    better = "{better}"')
    made = declared(tables, *(f"tpot_ms = {values[number > 2]} # {number}" for number in range(6)))
    effect = values[1] / values[0] - 1
    said = kvtrail(made, "compare", "HEAD~5", "HEAD")
    assert said.verdicts == {"tpot_ms": "faster" if word == "better" else "slower"}
    assert f"tpot_ms: {word} ({effect:+.0%}"[: len(word) + 12] in said.text
    direction = ["--improvement"] if word == "better" else []
    found = kvtrail(made, "bisect", "HEAD~5", "HEAD", *direction)
    plain = word == "slower"
    first = f"first {word} commit" if plain else f"first commit with {word} tpot_ms"
    assert f"{first}: {made.git('rev-parse', '--short=8', 'HEAD~2')}" in found.text
    # The lines of the search, and those of the table.
    changes = re.findall(r"[0-9a-f]{8} +([+-][0-9.]+) % |│ +([+-][0-9.]+) % │", found.text)
    large = {max(one) for one in changes if abs(float(max(one))) > 5}
    assert {text[0] for text in large} == {f"{effect:+}"[0]}
    judged = kvtrail(made, "fixed", "HEAD~3", "HEAD~2", "HEAD~1").text
    assert f"{word} than its parent" in judged
    for text in (said.text, found.text, judged):
        told = text.replace("--improvement", "")
        assert plain or not re.search("slower|faster", told), told


@pytest.mark.usefixtures("lives_in_process")
def test_sides_that_do_not_overlap_and_are_not_told_apart_are_explained(kvtrail, declared) -> None:
    made = declared(TABLES, "tpot_ms = 5", "tpot_ms = 5.0125")
    few = ("compare", "HEAD~1", "HEAD", "--margin", "0.1", "--pairs")
    with pytest.raises(Refused, match=r"take at least 7\."):
        kvtrail(made, *few, "5")
    said = kvtrail(made, *few, "6")
    assert said.verdicts == {"tpot_ms": "inconclusive"}
    assert "the two do not overlap, but after 6 pairs only a gap that is wide" in said.text
    assert kvtrail(made, *few, "10").verdicts == {"tpot_ms": "slower"}


@pytest.mark.usefixtures("lives_in_process")
@pytest.mark.parametrize(
    ("question", "shift"),
    [(("compare", "HEAD~1"), 0.0026), (("fixed", "HEAD~2", "HEAD~1"), 0.007)],
)
def test_an_interval_within_the_margin_that_is_not_enough_says_so(
    kvtrail, declared, question: tuple[str, ...], shift: float
) -> None:
    made = declared(TABLES, *(f"tpot_ms = {value}" for value in (5, 6, 6 + shift)))
    most = "--rounds" if question[0] == "fixed" else "--pairs"
    said = kvtrail(made, *question, "HEAD", "--margin", "0.11", most, "12")
    answer = list(said.answers.values())[-1]
    assert answer["verdict"] == "inconclusive"
    assert max(map(abs, answer["interval"])) < 0.0011
    assert "the interval lies within the margin of 0.11 %, and to be called" in said.text


def test_figures_are_windows_out_of_json_and_of_what_is_printed(declared) -> None:
    tables = f"""{TABLES}
    [metrics.throughput]
    regex = 'throughput: ([0-9.]+) tok/s'

    [metrics.first]
    path = "nested.0.first.token"
    """
    bench = """
        import json, os
        print("throughput: 100 tok/s", *["throughput: 102 tok/s"] * 2)
        figures = {"tpot_ms": [5, 6], "nested": [{"first.token": 10}]}
        json.dump(figures, open(os.environ["KVTRAIL_RESULT"], "w"))
        """
    lived = declared(tables, bench).lived()
    assert {name: one.samples for name, one in lived.items()} == {
        "tpot_ms": (5, 6),
        "throughput": (100, 102, 102),
        "first": (10,),
    }
    assert (lived["tpot_ms"].value, lived["throughput"].value) == (5.5, 102)


@pytest.mark.parametrize(
    ("take", "value"), [("median", 3), ("min", 1), ("mean", 22), ("p25", 2), ("p99", 96.16)]
)
def test_a_metric_may_take_another_share_of_its_windows(declared, take: str, value: float) -> None:
    tables = TABLES.replace('unit = "ms"', f'take = "{take}"')
    bench = 'import os; open(os.environ["KVTRAIL_RESULT"], "w").write(\'{"tpot_ms": %s}\')'
    made = declared(tables, bench % [4, 100, 1, 2, 3])
    assert made.lived()["tpot_ms"].value == pytest.approx(value)
    # Stored figures mean what they meant where nothing else is taken.
    version = made.subject.version("tpot_ms")
    made.declare(tables.replace(f'take = "{take}"', ""))
    assert (made.subject.version("tpot_ms") == version) == (take == "median")


def test_the_cpu_time_of_a_life_is_that_of_all_that_it_started(declared) -> None:
    # The second one is nobody's child any more, and the life only waits for it.
    worker = """
        import os, subprocess, sys, time
        def work():
            while time.process_time() < 0.2:
                pass
        if sys.argv[1:]:
            work()
            os.write(int(sys.argv[1]), b"+")
            raise SystemExit
        work()
        reading, writing = os.pipe()
        words = f"python bench.py {writing} & exit"
        subprocess.run(["sh", "-c", words], pass_fds=(writing,))
        os.read(reading, 1)
        time.sleep(0.3)
        """
    lived = declared('[subject]\nname = "toy"\nmeasure = "python bench.py"', worker).lived("cpu_s")
    assert 0.4 <= lived["cpu_s"].value < 1.5


@pytest.mark.parametrize("name", ["instructions", "cycles"])
def test_instructions_are_counted_where_the_kernel_does_so(declared, kvtrail, name: str) -> None:
    made = declared(TABLES, tpot(5.0), f"{tpot(5.0)}#")
    assert name not in made.lived(".*")
    absence = made.lacking(name)
    if absence is None:
        assert made.lived(name)[name].value > 1e6
        return
    assert re.search("the kernel (lets you count none|counts none) here", absence.reason)
    said = kvtrail(made, "compare", "HEAD~1", "HEAD", "--metric", name)
    assert said.code == 5
    assert absence.reason in said.text


@pytest.mark.usefixtures("lives_in_process")
def test_several_metrics_with_a_direction_and_a_margin_of_their_own(kvtrail, declared) -> None:
    tables = f"""{TABLES}
    [metrics.throughput]
    path = "throughput"
    better = "higher"
    margin = 10

    [metrics.first]
    path = "first"
    better = "higher"
    """
    benches = [f"tpot_ms = 5; throughput = {100 - n}; first = {10 - n / 5}" for n in (0, 5)]
    made = declared(tables, *benches)
    said = kvtrail(made, "compare", "HEAD~1", "HEAD")
    wanted = {"tpot_ms": "equivalent", "throughput": "equivalent", "first": "slower"}
    assert (said.code, said.verdicts) == (3, wanted), said.text
    assert said.answers["first"]["effect"] == pytest.approx(-0.1, abs=0.005)
    chosen = kvtrail(made, "compare", "HEAD~1", "HEAD", "--metric", "^tpot", "-b", "first")
    assert set(chosen.verdicts) == {"tpot_ms", "first"}


LEAVES = "open(__import__('os').environ['KVTRAIL_RESULT'], 'w').write({!r})"


@pytest.mark.parametrize(
    ("bench", "code", "words"),
    [
        ("print('hello')", 5, "it left no file at $KVTRAIL_RESULT"),
        (LEAVES.format('{"tpot_ms": NaN}'), 1, "nan"),
        (LEAVES.format("{"), 1, "is no JSON"),
        ("import sys; print('last words'); sys.exit(7)", 1, "exit code 7: last words"),
        ("import sys; print('too old'); sys.exit(125)", 5, "exit code 125: too old"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 1, "signal 11 ended it"),
    ],
)
def test_a_life_that_gives_no_figure_is_a_sentence(
    kvtrail, declared, bench: str, code: int, words: str
) -> None:
    made = declared(TABLES, tpot(5.0), bench)
    said = kvtrail(made, "compare", "HEAD~1", "HEAD")
    assert said.code == code, said.text
    assert words in said.text
    assert made.git("rev-parse", "--short=8", "HEAD") in said.text
    assert "equivalent" not in said.verdicts.values()


# Also as a daemon begins: no parent, session, variable or folder of this life.
ORPHANS = """
    import os, subprocess, sys, time
    for session in (False, True):
        subprocess.Popen(["sleep", "{orphan}"], start_new_session=session)
        subprocess.Popen(["sleep", "{orphan}"], start_new_session=session, env={{}})
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            os.execve("/bin/sleep", ["sleep", "{orphan}"], {{}})
        os._exit(0)
    print("the last words", flush=True)
    {end}
    """


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("time.sleep(600)", "did not end within 2 s: the last words"),
        ("sys.exit(3)", "exit code 3: the last words"),
    ],
)
def test_a_life_ends_with_all_that_it_started(declared, end: str, words: str) -> None:
    orphan = own_seconds()
    limit = 2 if "sleep" in end else 60
    tables = TABLES.replace("[metrics", f"timeout_s = {limit}\n    [metrics", 1)
    with pytest.raises(CommitUnusable, match=words):
        declared(tables, ORPHANS.format(orphan=orphan, end=end)).prepared()
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


@pytest.mark.usefixtures("kvtrail")
def test_a_setup_is_made_once_for_each_tree_and_the_last_ones_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asv_bench.measure.trees._KEPT_SETUPS", 2)
    made = DeclaredRepository.make(
        tmp_path / "toy ümlaut", SETUP, READS, READS.replace("import", "import sys,")
    )
    for value, setups in ((5, 2), (5, 2), (6, 4)):  # a pinned file is part of what it depends on
        build = f"echo made >> '{tmp_path}/made'; echo {value}.0 > value\n"
        (made.root / "build.sh").write_text(build)
        assert made.prepared("HEAD~1") == {}
        assert made.lived()["tpot_ms"].value == pytest.approx(value, rel=0.01)
        assert (tmp_path / "made").read_text().split() == ["made"] * setups
    assert len([*(tmp_path / "cache").glob("toy-*")]) == 2


@pytest.mark.parametrize(("exit_with", "code"), [(1, 1), (125, 5)])
def test_a_setup_that_fails_is_quoted_and_not_kept(
    kvtrail, declared, exit_with: int, code: int
) -> None:
    made = declared(SETUP, READS, READS.replace("import", "import sys,"))
    (made.root / "build.sh").write_text(f"echo no compiler; exit {exit_with}\n")
    said = kvtrail(made, "compare", "HEAD~1", "HEAD")
    assert said.code == code
    assert f"its setup: it ended with exit code {exit_with}: no compiler" in said.text
    (made.root / "build.sh").write_text("echo 5.0 > value\n")
    assert made.prepared() == {}


@pytest.mark.usefixtures("lives_in_process")
def test_what_is_set_up_and_warmed_up_is_said(
    kvtrail, declared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asv_bench.output.console.SECONDS_BETWEEN_LINES", 0)
    made = declared(TABLES.replace("measure", 'setup = "true"\n    measure'), "tpot_ms = 5")
    said = kvtrail(made, "compare", "HEAD", "HEAD", "--anyway", "--quick")
    for what in ("setting up", "warming up"):
        assert f"{what} {made.git('rev-parse', '--short=8', 'HEAD')}: 0 of 12 pairs" in said.text


@pytest.mark.usefixtures("lives_in_process")
def test_pairs_of_an_edited_benchmark_are_not_gone_on_with(kvtrail, declared) -> None:
    made = declared(TABLES.replace("[metrics", 'pinned = ["bench.py"]\n    [metrics', 1), "pass")
    same = ("compare", "HEAD", "HEAD", "--anyway")
    fixed = set()
    for value in (5.0, 6.0):
        (made.root / "bench.py").write_text(f"tpot_ms = {value}")
        said = kvtrail(made, *same)
        fixed.add(said.record["settings"]["fixed"])
        assert said.answers["tpot_ms"]["base_value"] == pytest.approx(value, rel=0.01)
        assert "uncommitted changes" not in said.text
    assert len(fixed) == 2
    (made.root / "bench.py").write_text("print('another')")
    with pytest.raises(Refused, match="no pairs of the same compare"):
        kvtrail(made, *same, "--resume")


@pytest.mark.usefixtures("lives_in_process")
def test_labels_are_compared_in_the_working_trees_files(kvtrail, declared) -> None:
    made = declared(TABLES + along("tf-4.55", "tf-4.56", "tf-4.57"), "committed = 'not this one'")
    (made.root / "bench.py").write_text("tpot_ms = 5.5 if label.endswith('7') else 5.0")
    said = kvtrail(made, "compare", "tf-4.55", "tf-4.57")
    assert (said.code, said.verdicts) == (3, {"tpot_ms": "slower"}), said.text
    assert "tf-4.57 against tf-4.55" in said.text
    options = ("--base", "tf-4.55", "--head", "tf-4.56", "--axis", "labels")
    os.utime(made.root / "bench.py", (2e9, 2e9))  # a fresh clone dates it anew
    again = kvtrail(made, "compare", *options)
    assert again.verdicts == {"tpot_ms": "equivalent"}
    assert again.record["settings"]["fixed"] == said.record["settings"]["fixed"]
    found = kvtrail(made, "bisect", "tf-4.55", "tf-4.57")
    assert found.code == 3, found.text
    assert "first slower label: tf-4.57" in found.text
    with pytest.raises(Refused, match=r"'4\.58' is none of the labels tf-4\.55"):
        kvtrail(made, "compare", "tf-4.55", "4.58")


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
    "BROKER": "redis://:hunter2@host/0",
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
    said = kvtrail(made, "compare", "HEAD~1", "HEAD", "--markdown", str(tmp_path / "page.md"))
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
    ("key", "words"),
    [
        ("[", "kvtrail.toml: "),
        ('repository = "/"', "is no git repository"),
        ("devices = 1", "there is no"),
        (f"cores = {10 * (os.cpu_count() or 1)}", "cores"),
    ],
)
def test_a_file_that_says_something_wrong_is_refused(
    kvtrail, declared, monkeypatch: pytest.MonkeyPatch, key: str, words: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    made = declared(f'[subject]\nname = "toy"\nmeasure = "x"\n{key}', "pass")
    with pytest.raises(Refused, match=re.escape(words)):
        kvtrail(made, "compare", "HEAD", "HEAD")


@pytest.mark.usefixtures("lives_in_process")
def test_the_file_is_found_by_its_name_and_the_same_commit_is_not_slower(
    kvtrail, declared, tmp_path: Path
) -> None:
    made = declared(TABLES, "tpot_ms = 5")
    assert kvtrail(made, "compare", "HEAD", "HEAD").verdicts == {"tpot_ms": "same"}
    elsewhere = (made.root / "kvtrail.toml").rename(tmp_path / "elsewhere.toml")
    text = elsewhere.read_text().replace('"toy"', '"toy"\nrepository = "toy"')
    elsewhere.write_text(text)
    named = ("compare", "HEAD", "HEAD", "--subject", str(elsewhere))
    assert kvtrail(made, *named).verdicts == {"tpot_ms": "same"}
    said = kvtrail(made, *named, "--anyway")
    assert (said.code, said.verdicts) == (0, {"tpot_ms": "equivalent"}), said.text
