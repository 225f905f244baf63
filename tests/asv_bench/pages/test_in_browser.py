"""The page as people use it: in a browser, by mouse and by keyboard, without a network."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
from browser import Browser, chromium
from page_project import COMMITS, EVIL, HERE, SIZE, STEP, STEP_AT, TPOT, PageProject
from rich.console import Console

from asv_bench.history.histories import Histories
from asv_bench.pages.site import build_page

ROOT = Path(__file__).resolve().parents[3]
BATCH_8, BATCH_64 = f"{STEP}(gpt2, 8)", f"{STEP}(gpt2, 64)"
BOX = "JSON.stringify(document.querySelectorAll('.over')[{}].getBoundingClientRect())"
TIP = "[...document.querySelectorAll('.tip:not([hidden]) p')].map((one) => one.innerText)"
RANGES = "page.plots.map((one) => one.axis.range)"

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium here to look at pages"),
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> PageProject:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVTRAIL_MACHINE", HERE)
        made = PageProject.make(tmp_path_factory.mktemp("project"))
        build_page(made.histories, Console())
    return made


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The one browser, which neither complains nor asks for anything but files."""
    with closing(Browser(tmp_path_factory.mktemp("profile"))) as one:
        one.size(1280, 900)
        yield one
        assert one.complaints == []
        assert {re.split(r"[:/]", request)[0] for request in one.requests} <= {"file", "about"}
        assert one.ask("window.evil") is None


def opened(browser: Browser, project: PageProject, *address: str) -> None:
    """Opens the page at the address of a machine, or of a graph."""
    quoted = "/".join(map(quote, address))
    browser.open(project.histories.pages / "index.html", f"#{quoted}" if quoted else "")


def place_of(browser: Browser, place: int, graph: int = 0) -> tuple[float, float]:
    """Where on the screen a commit stands on a graph."""
    plot = f"page.plots[{graph}]"
    browser.wait_for(f"{plot}.chart.isDrawn")
    box = json.loads(browser.ask(BOX.format(graph)))
    across = browser.ask(f"{plot}.chart.xOf({plot}.axis.positions[{place}])")
    return box["x"] + across, box["y"] + box["height"] / 2


def seen(browser: Browser, selector: str) -> list[str]:
    """The texts of what is shown of some elements."""
    elements = f"[...document.querySelectorAll({json.dumps(selector)})]"
    return browser.ask(
        f"{elements}.filter((one) => one.checkVisibility()).map((one) => one.innerText)"
    )


def test_it_opens_on_this_machine_and_on_what_changed(
    browser: Browser, project: PageProject
) -> None:
    opened(browser, project)
    assert seen(browser, ".tabs [aria-current]") == [f"{HERE} this machine"]
    assert seen(browser, ".news") == [
        "1 regression confirmed and 1 change for the worse suspected in the last 20 commits "
        "measured."
    ]
    newest, older = seen(browser, ".change")
    assert EVIL in newest
    assert "Jürgen Müßig, 2026-10-13, 12 commits ago" in newest
    assert "▲ +8.0 % confirmed regression decode: step time, gpt2, batch 8" in newest
    assert "compared +7.90 %, +7.0 % to +9.0 %, in 8 pairs" in newest
    assert "▲ +8.0 % not confirmed yet decode: step time, gpt2, batch 64" in newest
    assert "acknowledged größe: länge" in older
    assert "Names are <shorter> now." in older
    assert "1 failed when measured last: scheduler: TPOT, gpt2" in seen(browser, ".lead")[0]
    link = browser.ask("document.querySelector('.change a').href")
    assert link.endswith(f"github.com/jurgen/beispiel/commit/{project.hashes[STEP_AT]}")
    # Its newest figure is two measured commits older than the newest, of which five are newer.
    assert "failed" in (row := seen(browser, ".latest tr[data-graph]")[3])
    assert "last measured 7 commits ago" in row


def test_pointing_at_a_figure_says_all_about_it(browser: Browser, project: PageProject) -> None:
    opened(browser, project, HERE, STEP)
    browser.mouse("mouseMoved", *place_of(browser, STEP_AT))
    value, commit, spread, _, where, change, verdict = browser.ask(TIP)
    assert re.fullmatch(r"3\.2\d+ ms", value)
    assert commit == f"{project.hashes[STEP_AT][:8]} {EVIL}"
    assert re.fullmatch(r"middle half of 5 processes: 3\.2\d* to 3\.2\d* ms", spread)
    assert re.fullmatch(rf"session of 2026-09-21 \d\d:\d\d UTC, {HERE}", where)
    assert change.startswith("Change: +8.0 %, confirmed regression: +7.90 % in 8 pairs")
    assert re.fullmatch(r"compare: slower, \+8\.10 % against \w{8} in 6 pairs", verdict)
    legends = seen(browser, ".legend")
    assert "▲confirmed regression" in legends[0]
    assert "◆compared: slower" in legends[0]
    assert "another session of measuring" in legends[1]


def test_a_click_copies_the_comparison_that_asks_about_the_step(
    browser: Browser, project: PageProject
) -> None:
    opened(browser, project, HERE, BATCH_8)
    browser.ask("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    browser.click(*place_of(browser, STEP_AT))
    words = shlex.split(browser.ask("window.copied"))
    ends = [project.hashes[place][:8] for place in (STEP_AT - 1, STEP_AT)]
    assert words[:5] == ["kvtrail", "compare", *ends, "--metric"]
    assert re.search(words[5], f"{STEP}('gpt2', 8)")
    assert not re.search(words[5], f"{STEP}('gpt2', 64)")
    assert seen(browser, ".toast") == [f"Copied: {browser.ask('window.copied')}"]


def test_two_commits_that_are_chosen_are_compared(browser: Browser, project: PageProject) -> None:
    opened(browser, project, HERE, BATCH_8)
    browser.ask("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    browser.mouse("mouseMoved", *place_of(browser, 25))
    [hint] = seen(browser, ".tip small")
    assert hint.startswith("Click: copy the compare with the commit before.")
    browser.click(*place_of(browser, 25), has_shift=True)
    assert browser.ask("window.copied") is None
    browser.mouse("mouseMoved", *place_of(browser, 3))
    assert seen(browser, ".tip small") == [
        f"Click: copy the compare with {project.hashes[25][:8]}."
    ]
    browser.click(*place_of(browser, 3))
    older, newer = project.hashes[3][:8], project.hashes[25][:8]
    assert f"kvtrail compare {older} {newer} --metric" in browser.ask("window.copied")
    # Then a click asks about the step again.
    browser.click(*place_of(browser, 9))
    assert f"kvtrail compare {project.hashes[8][:8]} " in browser.ask("window.copied")
    browser.click(*place_of(browser, 25), has_shift=True)
    browser.key("Escape")
    browser.click(*place_of(browser, 9))
    assert f"kvtrail compare {project.hashes[8][:8]} " in browser.ask("window.copied")


def test_graphs_are_drawn_while_they_are_seen(browser: Browser, project: PageProject) -> None:
    opened(browser, project, HERE, STEP)
    drawn = "page.plots[0].chart.isDrawn"
    browser.wait_for(drawn)
    # The middle of a figure's point has the colour of its line.
    point = "chart.across[5] + EDGE.left, chart.yOf(chart.lines[0].values[5]) + EDGE.top, 1, 1"
    pixel = browser.ask(
        "(() => { const { chart } = page.plots[0];"
        f" return [...chart.canvas.getContext('2d').getImageData({point}).data]; }})()"
    )
    assert "#{:02x}{:02x}{:02x}".format(*pixel) == browser.ask("lineColour(0)")
    browser.ask("scrollTo(0, document.body.scrollHeight)")
    browser.wait_for(f"!{drawn}")
    assert browser.ask("page.plots[0].chart.canvas.width") == 0
    browser.ask("scrollTo(0, 0)")
    browser.wait_for(drawn)


def test_small_graphs_have_one_scale_and_show_noise(browser: Browser, project: PageProject) -> None:
    opened(browser, project)
    assert seen(browser, "section:not([hidden]) .reach") == ["(height: 10 %)"]
    shapes = browser.ask(
        "[...document.querySelectorAll('section:not([hidden]) .trend svg')].map((svg) =>"
        " ['polyline', 'polygon'].map((name) => svg.querySelector(name).getBBox().height))"
    )
    (batch_8, noise), (batch_64, _), (size, _), (tpot, _) = shapes
    # Both rose by 8 % and a little noise; the size fell by 20 % and is cut off.
    assert batch_8 == pytest.approx(17, abs=2)
    assert batch_64 == pytest.approx(17, abs=2)
    assert size == pytest.approx(21, abs=0.2)
    assert tpot < 4
    assert noise > batch_8


def test_dragging_zooms_every_graph_and_a_double_click_undoes_it(
    browser: Browser, project: PageProject
) -> None:
    opened(browser, project, HERE, STEP)
    whole = browser.ask(RANGES)
    (left, height), (right, _) = place_of(browser, 10), place_of(browser, 20)
    browser.mouse("mouseMoved", left, height)
    browser.mouse("mousePressed", left, height, 1)
    browser.mouse("mouseMoved", right, height, 1)
    browser.mouse("mouseReleased", right, height, 1)
    for bounds in browser.ask(RANGES):
        assert bounds == pytest.approx([10, 20], abs=0.2)
    assert seen(browser, ".toast") == [], "a drag is no click"
    browser.click(*place_of(browser, 15), clicks=2)
    assert browser.ask(RANGES)[0] == whole[0]


def test_the_keyboard_walks_zooms_and_copies(browser: Browser, project: PageProject) -> None:
    opened(browser, project, HERE, BATCH_8)
    browser.ask("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    browser.ask("document.querySelector('.plot').focus({ focusVisible: true })")
    browser.key("End")
    browser.key("ArrowLeft")
    said = browser.ask("document.querySelector('.said').textContent")
    assert f"{project.hashes[COMMITS - 2][:8]} Change number {COMMITS - 2}" in said
    browser.key("Enter")
    assert project.hashes[COMMITS - 3][:8] in browser.ask("window.copied")
    browser.key("+")
    low, high = browser.ask(RANGES)[0]
    assert low > 10
    browser.key("Home")
    browser.key("0")
    assert browser.ask(RANGES)[0][0] < 0 < high
    browser.key("Escape")
    assert browser.ask(TIP) == []
    browser.key("/")
    assert browser.ask("document.activeElement.type") == "search"


def test_the_filter_leaves_what_matches(browser: Browser, project: PageProject) -> None:
    opened(browser, project)
    for text, titles in (
        ("batch 64", ["step time, gpt2, batch 64"]),
        ("GRÖSSE", []),
        ("regression", ["step time, gpt2, batch 8"]),
        ("", ["step time, gpt2, batch 8", "step time, gpt2, batch 64", "länge", "TPOT, gpt2"]),
    ):
        browser.ask(
            f"(() => {{ const box = document.querySelector('.filter input'); box.value = '{text}';"
            f" box.dispatchEvent(new Event('input')); }})()"
        )
        rows = seen(browser, "section.machine:not([hidden]) .latest tr[data-graph]")
        assert [row.split("\t")[0] for row in rows] == titles, text


def test_the_filter_is_in_the_address(browser: Browser, project: PageProject) -> None:
    rows = "section.machine:not([hidden]) .latest tr[data-graph]"
    browser.open(project.histories.pages / "index.html", f"#{HERE}?q=confirmed%20regression")
    assert [row.split("\t")[0] for row in seen(browser, rows)] == ["step time, gpt2, batch 8"]
    browser.ask(
        "(() => { const box = document.querySelector('.filter input'); box.value = 'batch 64';"
        " box.dispatchEvent(new Event('input')); })()"
    )
    assert browser.ask("location.hash") == f"#{HERE}?q=batch%2064"
    browser.ask(f"document.querySelector('{rows}:not([hidden]) a').click()")
    browser.wait_for("page.plots.length === 1")
    assert browser.ask("location.hash").endswith(")?q=batch%2064")
    assert len(seen(browser, rows)) == 1


def test_every_graph_has_an_address(browser: Browser, project: PageProject) -> None:
    opened(browser, project)
    for key in (BATCH_8, BATCH_64, SIZE, f"{TPOT}(gpt2)"):
        browser.ask(
            f"[...document.querySelectorAll('.latest a')].find((one) => "
            f"decodeURIComponent(one.hash) === '#{HERE}/' + {json.dumps(key)}).click()"
        )
        browser.wait_for(
            f"page.plots.length === 1 && page.plots[0].graph.key === {json.dumps(key)}"
        )
    browser.ask("document.querySelector('.close').click()")
    browser.wait_for("document.querySelector('.panel').hidden")
    browser.ask("history.back()")
    browser.wait_for("page.plots.length === 1")
    browser.ask("location.hash = '#own-this/no-such-benchmark'")
    browser.wait_for("document.querySelector('.panel').hidden")
    browser.ask("location.hash = '#figures'")
    assert seen(browser, ".tabs [aria-current]") == [f"{HERE} this machine"]


def test_behind_every_graph_are_a_table_and_a_file(browser: Browser, project: PageProject) -> None:
    opened(browser, project, HERE, BATCH_8)
    browser.ask("document.querySelector('.graph summary').click()")
    browser.wait_for("document.querySelectorAll('.graph tbody tr').length === 30")
    newest = seen(browser, ".graph tbody tr")[0].split("\t")
    assert newest[2:4] == ["Jürgen Müßig", "2026-10-20"]
    browser.ask("URL.createObjectURL = (blob) => { window.file = blob; return '#'; }")
    browser.ask("document.querySelector('.csv').click()")
    rows = list(csv.DictReader(io.StringIO(browser.ask("window.file.text()"))))
    assert [row["commit"] for row in rows] == project.hashes[:COMMITS]
    row, path = rows[STEP_AT], project.root / "reports" / "asv" / HERE
    [file] = path.glob(f"{row['commit'][:8]}-*.json")
    stored = json.loads(file.read_text())["results"][STEP][0][0]
    assert float(row["value"]) == pytest.approx(stored, rel=1e-4)
    assert (row["subject"], row["unit"]) == (EVIL, "seconds")


@pytest.fixture(scope="module")
def bisected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a bisection of 150 commits, beside the page that lists it."""
    folder, name = tmp_path_factory.mktemp("packaging"), "bisect-requirement-cpu-2core"
    record = ROOT / "reports" / "subjects" / "packaging" / f"{name}.json"
    (folder / record.name).symlink_to(record)
    build_page(Histories("packaging", folder, folder, folder), Console())
    return folder / "pages" / f"{name}.html"


def test_the_page_of_a_bisection_draws_its_curve(browser: Browser, bisected: Path) -> None:
    browser.open(bisected)
    # It is reached from the list, whose page has nothing to draw.
    browser.ask("location.href = 'index.html'")
    browser.wait_for("document.querySelector('.bisections a') !== null")
    browser.ask("document.querySelector('.bisections a').click()")
    browser.wait_for("!!document.querySelector('canvas')?.style.width")
    colours = browser.ask(
        "(() => { const one = document.querySelector('canvas'); const { width, height } = one;"
        " const all = one.getContext('2d').getImageData(0, 0, width, height).data;"
        " const found = {}; for (let at = 0; at < all.length; at += 4) {"
        " const hex = [0, 1, 2].map((n) => all[at + n].toString(16).padStart(2, '0'));"
        " const name = `#${hex.join('')}`;"
        " if (all[at + 3] === 255) found[name] = (found[name] ?? 0) + 1; }"
        " return ['--line-1', '--muted', '--better'].map((name) => found[css(name)] ?? 0); })()"
    )
    # The curve, its processes, and the line at the commit that is named.
    assert all(count > 100 for count in colours)
    browser.ask("document.querySelector('.plot').focus({ focusVisible: true })")
    browser.key("End")
    level, commit, spread, author, machine, verdict = browser.ask(TIP)
    assert re.fullmatch(r"-3\d\.\d+ %", level)
    assert commit.startswith("3b77a26f ")
    assert author
    assert machine == "own-amd-epyc-2-cores"
    assert re.fullmatch(r"95 % interval of the level of \d+ processes: -\S+ to -\S+ %", spread)
    assert verdict.startswith("compared: faster, -41.00 % (")
    assert "probability of a step here" in seen(browser, ".legend")[0]


def test_the_page_of_a_bisection_is_read_without_scripts(browser: Browser, bisected: Path) -> None:
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    browser.command("Page.navigate", url=bisected.as_uri())
    browser.wait_for("document.querySelectorAll('tbody tr').length === 150")
    assert "first faster commit: 5037c932" in seen(browser, ".news")[0]
    assert seen(browser, ".panel") == []
    [row] = [one for one in seen(browser, "tbody tr") if one.startswith("5037c932 perf")]
    assert row.endswith("99.3 %")
    browser.command("Emulation.setScriptExecutionDisabled", value=False)
