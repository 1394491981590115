"""The report is one file that needs nothing else, for every kind of run, whoever named things."""

import re
import shutil
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.data import About, moons
from archipel.engines.engine import Cause
from archipel.report.html import render, write
from archipel.runs.run import Spent
from archipel.store.journal import Event

PLAN = ar.Plan("stacked", 16, 1)
EVIL = "<script>alert('x')</script>"


class Study:
    """What a run's study looks like to the report."""

    name, purpose, hash = f"study {EVIL}", f"purpose {EVIL}", "0123abcd"

    def toml(self):
        return f'[study]\nname = "</pre>{EVIL}"\n'

    def resolved(self):
        return {"data": {"name": "heart_disease"}, "sources": {}}


def hospitals(data="heart_disease", **options):
    options = {"rounds": 4, "plan": PLAN, "baselines": True, "metric": "auc"} | options
    return ar.simulate(ar.FedAvg(lr=0.03), data, **options)


def before_the_first_round():
    run = hospitals(rounds=1)
    run.history, run.participation, run.parties, run.baselines = [], [], {}, {}
    run.spent, run.seconds, run.state = Spent(0, 0, 0), 0.0, "running"
    return run


def a_thousand_parties(test=0.3, new=50):
    random = np.random.default_rng(0)
    xs = [random.standard_normal((6, 3)).astype(np.float32) for _ in range(1000)]
    data = ar.Federation.from_arrays(
        xs, [(x[:, 0] > 0).astype(int) for x in xs], test=test, new=new
    )
    return ar.simulate(
        ar.FedAvg(lr=0.1), data, rounds=320, sample=0.02, dropouts=0.2, evaluate_every=40,
        plan=ar.Plan("stacked", 64, 1), baselines=True,
    )  # fmt: skip


def characters():
    random = np.random.default_rng(0)
    windows = [random.integers(0, 5, (n, 9)) for n in (8, 5, 6)]
    data = ar.Federation.from_arrays(
        [w[:, :-1] for w in windows], [w[:, 1:] for w in windows], task="text", classes=5, new=1
    )
    return ar.simulate(ar.FedAvg(lr=0.1), data, "char_lstm", rounds=1, plan=ar.Plan("one", 4, 1))


RUNS = {
    "hospitals": hospitals,
    "without baselines": lambda: hospitals(baselines=False),
    "some missing": lambda: hospitals(rounds=12, dropouts=0.5, quorum=3, target=0.8),
    "without test points": lambda: ar.simulate(
        ar.FedAvg(lr=0.03), ar.load("heart_disease", test_fraction=0.0), rounds=2, plan=PLAN
    ),
    "before the first round": before_the_first_round,
    "peers": lambda: ar.simulate(
        ar.DSGD(lr=0.1), "heart_disease", rounds=3, topology="ring", plan=PLAN, baselines=True
    ),
    "alone": lambda: ar.simulate(ar.Alone(lr=0.1), "heart_disease", rounds=2, plan=PLAN),
    "one party": lambda: ar.simulate(
        ar.FedAvg(lr=0.1), ar.load("heart_disease").pooled(), rounds=2, plan=PLAN, baselines=True
    ),
    "new parties": lambda: ar.simulate(
        ar.FedAvg(lr=0.1), ar.load("heart_disease").with_new(1), rounds=2, plan=PLAN, baselines=True
    ),
    "a thousand parties": a_thousand_parties,
    "regression": lambda: ar.simulate(
        ar.FedAvg(lr=1e-5), "school", rounds=3, plan=PLAN, baselines=True
    ),
    "survival": lambda: ar.simulate(
        ar.FedAvg(lr=0.01, batch_size=None), "tcga_brca", rounds=2, baselines=True,
        plan=ar.Plan("one", 4, 1),
    ),
    "text": characters,
}  # fmt: skip


@pytest.fixture(scope="module")
def pages():
    """The report of every kind of run."""
    return {name: render(make()) for name, make in RUNS.items()}


class Page(HTMLParser):
    """Tags, ids and what would be loaded."""

    VOID = ("meta", "link", "img", "br", "input", "hr")

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.tags, self.loads, self.links = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self.note(tag, dict(attrs))

    def handle_startendtag(self, tag, attrs):
        self.note(tag, dict(attrs))

    def note(self, tag, attrs):
        self.tags.append(tag)
        if "id" in attrs:
            self.ids.append(attrs["id"])
        for name in ("src", "srcset", "data", "poster", "href", "xlink:href"):
            value = attrs.get(name)
            if value is not None and not value.startswith("#"):
                (self.links if tag == "a" else self.loads).append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", RUNS)
def test_every_kind_of_run_has_a_whole_page(pages, name):
    page = Page(pages[name])

    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("h1") == 1
    assert "nan" not in re.sub(r"<[^>]*>", " ", pages[name]).lower().split()
    assert "None;" not in pages[name]


@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_loaded(pages, name):
    page = Page(pages[name])

    assert page.loads == []
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    assert page.tags.count("script") == 1
    assert re.findall(r"@import|url\((?!#)", pages[name]) == []
    assert all(link.startswith(("https://", "http://")) for link in page.links)


def test_the_first_sentence_is_the_result(pages):
    def result(name):
        return re.search(r'<p class="result">(.*?)</p>', pages[name])[1]

    assert re.fullmatch(
        r"Together the 4 hospitals reach AUC 0\.\d{3} on everybody's test points; "
        r"a hospital's own model 0\.\d{3} on average; data pooled 0\.\d{3}\.",
        unescape(result("hospitals")),
    )
    assert "after 4 rounds" in result("without baselines")
    assert "no test point" in result("without test points")
    assert "No round is done yet" in result("before the first round")
    assert result("one party").startswith("The one party reaches accuracy")
    assert "139 parties reach RMSE" in result("regression")


def test_sections_depend_on_what_there_is(pages):
    assert 'id="curve"' not in pages["without test points"]
    assert 'id="participation"' in pages["without test points"]
    assert 'id="participation"' not in pages["before the first round"]
    assert "not finished" in pages["before the first round"]
    assert "not finished" not in pages["hospitals"]
    assert "a cell: " in pages["a thousand parties"]
    assert "There is no server" in pages["peers"]
    assert "nothing is sent" in pages["alone"]
    assert "smaller is better" in pages["regression"]


def test_the_same_run_gives_the_same_page():
    run = hospitals()

    assert render(run) == render(run)


def test_names_and_texts_from_anywhere_stay_text():
    data = ar.load("heart_disease")
    about = About(EVIL, "javascript:alert(1)", EVIL, f"see https://example.org/?a='&b={EVIL}", EVIL)
    names = [EVIL, "$\\frac{", "\"'><img src=x onerror=alert(1)>\x00\x1b", "很长的名字" * 20]
    run = hospitals(data=replace(data, names=names, about=about), dropouts=0.5, quorum=4)
    run.study, run.events = Study(), [Event("2026-01-01T00:00:00", 1, EVIL, EVIL)]
    run.notes, run.environment = [EVIL], {"python": EVIL}
    run.participation[0].missing[0] = Cause("away", EVIL)

    text = render(run)

    page = Page(text)
    assert EVIL not in text
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert page.links == ["https://example.org/?a=", "https://arxiv.org/abs/1602.05629"]
    assert "&lt;script&gt;alert" in text


def test_study_and_ways_to_repeat_it():
    run = hospitals()
    assert "ar.simulate(FedAvg(lr=0.03)" in render(run)

    run.study = Study()
    text = render(run)
    assert "archipel run study.toml" in text
    assert "0123abcd" in text
    assert "&lt;/pre&gt;" in text


def repeated(run):
    """The words around the commands."""
    return unescape(re.sub(r"<[^>]*>", "", render(run).partition('id="repeat"')[2]))


def test_repeating_names_the_files_that_the_study_names(tmp_path):
    run = hospitals()
    run.study = Study()
    assert "as study.toml. Then:" in repeated(run)

    named = {"mine.py": "0", "tables/<b>.csv": "1", f"..{tmp_path}/out.csv": "2"}
    run.study.resolved = lambda: {"data": {"name": "mine.py"}, "sources": named}
    assert "study.toml, with the files that it names: mine.py, tables/<b>.csv, out.csv. Then:" in (
        repeated(run)
    )
    assert str(tmp_path) not in render(run)

    run.study.resolved = lambda: {"sources": {f"{i}.csv": "" for i in range(1_000)}}
    assert "9.csv and 990 more. Then:" in repeated(run)


def test_a_study_of_tables_and_code_says_all_of_this(tmp_path):
    rows = ["hospital,age,died"] + [f"{'ab'[i % 2]},{40 + i % 31},{i % 3 % 2}" for i in range(60)]
    (tmp_path / "patients.csv").write_text("\n".join(rows))
    net = "import torch\ndef net(shape, outputs):\n    return torch.nn.Linear(*shape, outputs)\n"
    (tmp_path / "net.py").write_text(net)
    data = {"file": "patients.csv", "by": "hospital", "target": "died", "missing": "mean"}

    def page(**more):
        study = ar.Study.of(
            base=tmp_path, study={"rounds": 1}, data=data | more, model={"name": "net.py"}
        )
        return render(study.run(None, baselines=False, workers=1))

    text = page()
    assert "<code>net.py</code>, <code>patients.csv</code>" in text
    assert "(3 numbers)" in text and "Empty cells were filled with means" in text
    assert "mean 0 and variance 1" not in page(standardise=False)


@pytest.mark.parametrize(
    ("name", "told"),
    [("hospitals", 39), ("new parties", 39), ("alone", 39), ("survival", 117),
     ("one party", 0), ("a thousand parties", 0), ("text", 0)],
)  # fmt: skip
def test_standardising_is_told_as_an_exchange(pages, name, told):
    sentence = "features were given mean 0 and variance 1 over the training points of all"

    assert (sentence in pages[name]) == (told > 0)
    assert (f"({told} numbers)" in pages[name]) == (told > 0)


def test_data_that_were_not_standardised_say_nothing():
    assert "mean 0 and variance 1" not in render(
        hospitals(data=ar.load("heart_disease", standardise=False))
    )


def test_the_folder_of_the_machine_is_not_told(tmp_path):
    run = hospitals(out=tmp_path / "mine")
    run.environment["folder"] = "/home/somebody"

    text = run.report().read_text()

    assert (tmp_path / "mine" / "report.html").is_file()
    assert str(tmp_path) not in text and "/home/somebody" not in text


def test_diverged_values_do_not_spoil_the_page():
    run = hospitals()
    run.parties = {"auc": torch.tensor([0.8, torch.inf, torch.nan, 0.7]).double()}
    for entry in run.history:
        entry["seen_parties"] = {**entry["seen_parties"], "mean": float("inf")}

    assert "<svg" in render(run)


# -- in a browser ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    """Chromium, with nothing to reach outside."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None
    )
    if program is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as engines:
        chromium = engines.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND"],
        )
        yield chromium
        chromium.close()


@pytest.mark.parametrize("name", ["hospitals", "some missing", "peers", "before the first round"])
def test_a_browser_shows_it_without_complaint(browser, pages, name, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(pages[name])
    page = browser.new_page(color_scheme="light", viewport={"width": 1100, "height": 800})
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())

    assert said == []
    assert asked == [path.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()


def test_a_page_that_follows_a_run_is_read_again(browser, tmp_path):
    data = moons.load(6, test_points=10)
    run = ar.simulate(ar.DSGD(lr=0.1), data, topology="matching", rounds=3, workers=1)
    path, whole = tmp_path / "report.html", run.history
    run.history = whole[:2]
    path.write_text(render(run, again=1))
    page = browser.new_page()
    page.goto(path.as_uri())
    assert page.locator(".moves output").inner_text() == "2"
    run.history = whole
    path.write_text(render(run))

    page.locator(".moves output", has_text="3").wait_for()
    assert page.locator("meta[http-equiv=refresh]").count() == 0
    page.close()


def test_colours_follow_the_reader_and_the_button(browser, pages, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(pages["hospitals"])
    page = browser.new_page(color_scheme="light")
    page.goto(path.as_uri())

    def colours():
        ink = "getComputedStyle(document.querySelector('figure svg text')).fill"
        return page.evaluate(f"[getComputedStyle(document.body).backgroundColor, {ink}]")

    light = colours()
    page.emulate_media(color_scheme="dark")
    dark = colours()
    assert light[0] == "rgb(255, 255, 255)" and light[0] != dark[0] and light[1] != dark[1]

    page.get_by_role("button", name="Show in light colours").click()
    assert colours() == light
    page.get_by_role("button", name="Show in dark colours").click()
    assert colours() == dark
    page.emulate_media(media="print")
    assert colours() == light
    assert not page.get_by_role("button").is_visible()
    page.close()


def test_it_can_be_read_aloud(browser, pages, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(pages["some missing"])
    page = browser.new_page()
    page.goto(path.as_uri())

    assert page.get_by_role("img").count() == 4
    for figure in page.get_by_role("img").all():
        assert len(figure.get_attribute("aria-label")) > 20
    assert page.get_by_role("rowheader", name="cleveland").count() == 1
    assert page.get_by_role("navigation").get_by_role("link").count() == 7
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.close()


def test_scripts_in_names_do_not_run(browser, tmp_path):
    names = [EVIL, "<img src=x onerror=\"document.title='gone'\">", "c", "d"]
    run = hospitals(data=replace(ar.load("heart_disease"), names=names))
    run.study = Study()
    page = browser.new_page()
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.goto(write(run, tmp_path / "report.html").as_uri())

    assert page.title().startswith("study <script>")
    page.close()
