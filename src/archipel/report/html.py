# SPDX-License-Identifier: Apache-2.0
"""The report of a run: one HTML file that needs nothing else, to read, print and send.

Names and texts come from anywhere, so all of them are escaped, the page's only script is named by
its hash, and the page forbids the browser to load anything.
"""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
from markupsafe import Markup, escape

from archipel.errors import clean
from archipel.exchange.leaving import EVERY_EVALUATION, EVERY_ROUND, ONCE
from archipel.report import graph, words, worth
from archipel.report.figures import figures
from archipel.report.svg import inline
from archipel.runs.contributions import contributions, has_own_pace
from archipel.scorecard.card import Scorecard
from archipel.scorecard.words import Row, duration, metric_name, number, plural, size
from archipel.store import files

if TYPE_CHECKING:
    from archipel.runs.run import Run

TABLED = 60  # parties with a line in the table
NOTED = 200  # notes and events shown
ENVIRONMENT = ("archipel", "python", "torch", "numpy", "platform", "processor", "cores")
_URL = re.compile(r"https?://[^\s<>\"']*[^\s<>\"'.,;:)]")


class PartyRow(NamedTuple):
    """A party's line in the table."""

    name: str
    new: bool
    train: str
    test: str
    told: str
    together: str
    alone: str
    pooled: str
    rounds: str


def write(run: Run, path: str | Path, again: int = 0) -> Path:
    """Write the report and return where it is; a browser reads it again in so many seconds."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, render(run, again).encode())
    return path


def render(run: Run, again: int = 0) -> str:
    """Return the report as HTML, which a browser reads again in so many seconds, unless 0."""
    card = run.scorecard
    captions, alternatives = words.captions(run, card), words.alternatives(run, card)
    pictures = {
        name: {"svg": inline(figure, name, alternatives[name]), "caption": captions[name]}
        for name, figure in figures(run, without=("graph",)).items()
    }
    drawn = graph.page(run, alternatives["graph"])
    if drawn is not None:
        pictures["graph"] = {"svg": drawn, "caption": captions["graph"]}
    one, many = words.nouns(run)
    script = source("theme.js") + (source("graph.js") if drawn is not None else "")
    page = environment().get_template("report.html")
    return page.render(
        run=run,
        again=again,
        card=card,
        e=card.efficacy,
        metric=metric_name(run.metric),
        title=words.title(run),
        result=words.result(run, card),
        verdict=words.verdict(run, card),
        lesson=words.lesson(run),
        before=words.before(run),
        over=words.over(run),
        sampled=words.sampled(run, card),
        sent_in_all=_sent_in_all(run, card),
        some_tell=any(run.data.about.counts) and not all(run.data.about.counts),
        one=one,
        many=many,
        figures=pictures,
        studied=_studied(run, one, many),
        parties=_parties(run),
        contributed=[] if run.worth is None else worth.rows(run.worth)[:TABLED],
        undrawn=graph.undrawn(run),
        sections=_sections(card),
        forecast=_forecast(run),
        notes=_notes(run),
        unnoted=max(0, len(run.events) + len(run.notes) - NOTED),
        commands=_commands(run),
        study_text=_study_text(run),
        needs=_needs(run),
        environment={k: v for k, v in run.environment.items() if k in ENVIRONMENT},
        script=Markup(script),
        script_hash=base64.b64encode(sha256(script.encode()).digest()).decode(),
    )


def environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("archipel.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "size": size,
        "duration": duration,
        "linked": linked,
    }
    return environment


def source(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def linked(text: str) -> Markup:
    """Escape a text, with its web addresses as links.

    >>> print(linked("<b> see https://example.org/a."))
    &lt;b&gt; see <a href="https://example.org/a" rel="noreferrer">https://example.org/a</a>.
    """
    done, parts = 0, []
    for match in _URL.finditer(text):
        address = escape(match[0])
        parts += [
            escape(text[done : match.start()]),
            Markup('<a href="{0}" rel="noreferrer">{0}</a>').format(address),
        ]
        done = match.end()
    return Markup("").join([*parts, escape(text[done:])])


def _studied(run: Run, one: str, many: str) -> list[tuple[str, str]]:
    """What was studied, as terms and descriptions."""
    fed, about, record = run.data, run.data.about, run.record
    (training, new), virtual = fed.real, int(fed.virtual.sum())
    n = fed.n[fed.stands]
    points = f"{int(n.sum()):,} training and {int(fed.n_test.sum()):,} test points"
    least, most = int(n.min()), int(n.max())
    each = f", {least:,} to {most:,} training points each" if fed.parties > 1 else ""
    if run.between_sites:
        points, each = "", ""
    who = f"{training:,} {many if training != 1 else one}"
    if virtual:
        who += f" and {virtual:,} virtual copies of them to train with"
    if new:
        who += f", and {new:,} new {many if new != 1 else one} for testing only"
        who += ", each in folds that test all its points" if fed.folded else ""
    built, loss = ", ".join(record.layers), record.loss.replace("_", " ")
    terms = [
        (
            "Data",
            ("" if about.name == "unnamed" else f"{about.name}: ")
            + ". ".join(filter(None, (points, about.note))),
        ),
        *words.patients(run),
        ("Source", about.source),
        ("Licence", about.licence),
        ("Cite", about.citation),
        (many.capitalize(), who + each),
        ("Model", f"{built}: {plural(record.parameters, 'parameter')}, {loss} loss"),
        ("Algorithm", " ".join(filter(None, (record.paper or record.algorithm, record.does)))),
        ("Settings", ", ".join(f"{name} = {value}" for name, value in record.settings.items())),
        (f"A new {one} needs for a model of its own", words.joining(run)),
        ("Rounds", f"{run.done:,} of {run.rounds:,}, seed {run.seed}"),
    ]
    return [(term, text) for term, text in terms if text]


def _told(points: int | None) -> str:
    """How many points, which a site may keep to itself."""
    return "not told" if points is None else f"{points:,}"


def _parties(run: Run) -> list[PartyRow]:
    """A line for each party, where there are few."""
    fed = run.data
    if fed.parties > TABLED or run.metric not in run.parties:
        return []
    asked, came = [0] * fed.parties, [0] * fed.parties
    for cohort in run.participation:
        for k in cohort.sampled.tolist():
            asked[k] += 1
        for k in cohort.present.tolist():
            came[k] += 1
    found: dict[str, Any] = {"together": run.parties} | {
        name: scores.parties for name, scores in run.baselines.items()
    }
    cells = {
        name: [number(value) for value in scores[run.metric].tolist()]
        for name, scores in found.items()
        if run.metric in scores
    }
    none = [""] * fed.parties
    took = [f"{came[k]:,} of {asked[k]:,}" for k in range(fed.parties)]
    if has_own_pace(run.algorithm, run.participation):
        took = list(map(str, contributions(run.participation, fed.parties)))
    points = [run.points(k) for k in range(fed.parties)]
    return [
        PartyRow(
            clean(fed.name(k)),
            k >= fed.training,
            _told(points[k].training),
            _told(points[k].test),
            points[k].told,
            cells["together"][k],
            cells.get("local", none)[k],
            cells.get("central", none)[k],
            took[k] if k < fed.training else "new",
        )
        for k in range(fed.parties)
        if fed.stands[k]
    ]


def _sent_in_all(run: Run, card: Scorecard) -> str:
    """Numbers and bytes that left a site which took part in all that was done."""
    times = {ONCE: 1, EVERY_ROUND: run.done, EVERY_EVALUATION: len(run.history)}
    counted = [(each, times[each.when]) for each in card.privacy.left if each.when in times]
    numbers = sum(each.numbers * count for each, count in counted)
    whole = sum(each.bytes * count for each, count in counted)
    one = " (with its vectors to one neighbour)" if run.record.peer else ""
    return f"{plural(numbers, 'number')}, {size(whole)}{one}"


def _sections(card: Scorecard) -> dict[str, list[Row]]:
    """The scorecard's lines by section."""
    sections: dict[str, list[Row]] = {}
    for row in card.rows():
        sections.setdefault(row.section, []).append(row)
    return sections


def _forecast(run: Run) -> list[tuple[str, ...]]:
    """What was forecast, between what, and what happened."""
    from archipel.forecast.words import cells

    check = run.forecast
    return [] if check is None else [cells(line) for line in check.lines]


def _notes(run: Run) -> list[tuple[str, str]]:
    """What happened when, and what was noted; each text once."""
    told = {event.text for event in run.events}
    notes = [("", note) for note in run.notes if note not in told]
    events = [
        (f"{event.time[:19].replace('T', ' ')}, round {event.round}", f"{event.kind}: {event.text}")
        for event in run.events
    ]
    return (events + notes)[:NOTED]


def _needs(run: Run) -> list[str]:
    """The files that the study file names."""
    named = {} if run.study is None else run.study.resolved().get("sources", {})
    return [Path(name).name if name.startswith("..") else name for name in named]


def _study_text(run: Run) -> str:
    """The study file: between sites byte for byte, so that its hash can be checked."""
    if run.approved is not None:
        return run.approved.decode()
    return "" if run.study is None else run.study.toml()


def _commands(run: Run) -> str:
    """What to type to have the same again."""
    version = run.environment.get("archipel")
    install = f"pip install archipel=={version}" if version else "pip install archipel"
    if run.between_sites:
        return f"{install}\narchipel coordinator submit study.toml"
    if run.study is not None:
        return f"{install}\narchipel run study.toml"
    given = ", ".join(f"{name}={run.record.settings[name]}" for name in run.record.given)
    return (
        f"{install}\n\n"
        f"import archipel as ar\n"
        f"ar.simulate({run.record.algorithm}({given}), data, model, "
        f"rounds={run.rounds}, seed={run.seed})  # as described above"
    )
