"""A report of a study between sites says only what is known.

E4: without counts it said "4 training and 0 test points", called a mean of sites "all test points",
showed another hash than the one that sites approved, and fewer numbers than really leave.
E9: a curve did not say who was in it, so that a weak hospital's absence looked like progress.
"""

import csv
import hashlib
import json
import re
from dataclasses import replace
from html import unescape
from io import StringIO
from shutil import copytree

import numpy as np
import pytest
import sqlalchemy as sa
from rich.console import Console

import archipel as ar
from archipel.data.shadow import Facts, shadow
from archipel.engines.engine import Cause
from archipel.exchange.boxes import has_personal
from archipel.exchange.leaving import EVERY_EVALUATION, EVERY_ROUND, ONCE
from archipel.measures import ALIKE, SITES, WEIGHTED
from archipel.report.export import contents
from archipel.report.figures import curve, lines_of
from archipel.report.frame import Pace, Series, Still, standing
from archipel.report.html import render
from archipel.report.live import render as picture
from archipel.report.words import over
from archipel.runs.history import absent
from archipel.runs.listing import open_run, read_run
from archipel.runs.participation import Cohort
from archipel.store.folder import Folder
from archipel.store.journal import EVALUATIONS, ROSTER, RUNS
from report.between_sites import NAMES, rows_of, study_between_sites
from report.fake_runs import fake_run

KINDS = {
    "untold": {"pause": True},
    "some tell": {"algorithm": "scaffold", "tell": (True, False, True, True)},
    "all tell": {"algorithm": "pefll", "tell": (True,) * 4, "rounds": 2},
}


@pytest.fixture(scope="module", params=list(KINDS))
def study(request, played):
    return played(request.param)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Play a study of a kind, once: as it went, as its folder tells it, its hash, its sites."""
    found = {}

    def play(kind):
        if kind not in found:
            folder = tmp_path_factory.mktemp("study")
            found[kind] = study_between_sites(folder, **KINDS[kind])
        return found[kind]

    return play


def text_of(page):
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page)))


def table(content):
    return list(csv.DictReader(StringIO(content.decode())))


def train_rows(k):
    return rows_of(k) - round(0.2 * rows_of(k))


def test_a_study_is_told_alike_with_and_without_torch(study):
    _, opened, _, _ = study

    told = read_run(opened.folder)

    assert type(told) is not ar.Run
    assert told.scorecard == opened.scorecard and told.study_hash == opened.study_hash
    assert [told.points(k) for k in range(4)] == [opened.points(k) for k in range(4)]
    assert render(told) == render(opened)
    plain, whole = contents(told), contents(opened)
    assert plain.keys() == whole.keys()
    assert all(plain[name] == whole[name] for name in plain if name != "model.safetensors")


# -- counts ----------------------------------------------------------------------------------------


def test_counts_that_come_with_uploads_are_known_and_others_are_not_told(played):
    """E4: FedAvg weighs by training points, so each upload tells them; test points stay untold."""
    went, read, _, _ = played("untold")

    for run in (went, read):
        assert [run.points(k) for k in range(4)] == [
            (train_rows(k), None, "with uploads") for k in range(4)
        ]
        assert [site["test_points"] for site in run.to_json()["sites"]] == [None] * 4
    rows = table(contents(read)["parties.csv"])
    assert [row["training_points"] for row in rows] == [str(train_rows(k)) for k in range(4)]
    assert [row["test_points"] for row in rows] == [""] * 4
    total = sum(map(train_rows, range(4)))
    page = text_of(render(read))
    assert f"{total} to train, not told to test" in page
    assert "Events not told" in page
    assert "0 test points" not in page


def test_a_site_that_does_not_tell_has_no_made_up_count(played):
    """E4: SCAFFOLD's uploads carry no count; what one site keeps to itself is nowhere 1 or 0."""
    _, read, _, _ = played("some tell")

    told = [read.points(k).training for k in range(4)]
    assert told == [train_rows(0), None, train_rows(2), train_rows(3)]
    (bonn,) = [row for row in table(contents(read)["parties.csv"]) if row["party"] == "bonn"]
    assert (bonn["training_points"], bonn["test_points"], bonn["told"]) == ("", "", "not told")
    assert f"{sum(filter(None, told))} (not told by bonn) to train" in text_of(render(read))
    assert "training and" not in repr(read.data)


def test_a_told_count_of_one_is_told_and_an_old_journal_is_read(played, tmp_path):
    """Up to version 2 a journal had 1 for a site that does not tell."""
    folder = copytree(played("some tell")[1].folder, tmp_path / "run")
    with Folder.open(folder).journal._transaction() as connection:
        connection.execute(sa.update(ROSTER).where(ROSTER.c.party == 0).values(training_points=1))
    told = open_run(folder).points(0)
    with Folder.open(folder).journal._transaction() as connection:
        connection.execute(sa.update(RUNS).values(version=2))
        connection.execute(sa.update(ROSTER).where(ROSTER.c.party == 1).values(training_points=1))
    old = open_run(folder)

    assert told.training == 1
    assert [old.points(k).training for k in range(4)] == [None, None, train_rows(2), train_rows(3)]


def test_a_huge_claim_costs_a_report_no_memory(played):
    """A site may claim 2^40 points: nothing of that size is set aside."""
    _, read, _, _ = played("some tell")
    facts = Facts(read.data.shape, 2, "classification", 1 << 40, 1 << 40)
    claimed = replace(read, data=shadow("stroke", dict.fromkeys(NAMES, facts)))

    assert f"{4 << 40:,} to train" in text_of(render(claimed))


# -- means -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "mean"), [("untold", ALIKE), ("some tell", ALIKE), ("all tell", WEIGHTED)]
)
def test_a_mean_over_sites_is_called_one(played, kind, mean):
    """E4: weighted by test points only if all that scored tell them; never "all test points"."""
    went, read, _, _ = played(kind)
    values = read.parties["auc"].numpy()
    weights = np.array([rows_of(k) - train_rows(k) if mean == WEIGHTED else 1 for k in range(4)])
    entry = read.history[-1]
    found = entry["own" if has_personal(read.algorithm) else "metrics"]["auc"]

    assert found == pytest.approx((values * weights).sum() / weights.sum())
    assert read.over == went.over == entry["over"] == read.to_json()["over"] == mean
    assert read.to_json()["scorecard"]["efficacy"]["over"] == mean
    shown = Console(file=StringIO(), width=160, record=True)
    shown.print(read.scorecard.table())
    shown.print(picture(read, 150, 30))
    said = shown.export_text()
    assert f"mean AUC over {mean}" in said
    assert f"over {mean}" in " ".join(text for text, _ in said_of(read))
    page = text_of(render(read))
    for claim in ("all test points", "over all at once"):
        assert claim not in said
        assert claim not in page.replace("is not the AUC over all test points", "")
    assert "is the mean over sites of what they measured" in page
    assert lines_of(read, read.metric).what == "mean over sites"


def said_of(run):
    """What the live view says of the metric."""
    return standing(Still.of(run, Pace(0.0, 0.0)), Series.of(run, run.history))


def test_a_weighted_mean_of_accuracies_is_the_accuracy_over_all_points(played):
    _, read, _, _ = played("all tell")

    assert "It is not the AUC over all test points" in over(read)
    assert "It is not" not in over(replace(read, metric="accuracy"))
    assert "It is not the accuracy" in over(replace(played("untold")[1], metric="accuracy"))


# -- the hash --------------------------------------------------------------------------------------


def test_the_hash_is_that_of_the_bytes_that_sites_approved(study):
    """E4: one name and one value in the report, in --json and, of the exported file, by SHA-256."""
    went, read, digest, sites = study
    files = contents(read)

    assert all(site.site_studies.has_approved(digest) for site in sites)
    assert read.study_hash == went.study_hash == read.to_json()["study_hash"] == digest
    assert hashlib.sha256(files["study.toml"]).hexdigest() == digest
    assert read.to_json()["resolved_hash"] is None
    page = render(read)
    assert f"Study hash {digest}" in text_of(page).replace("  ", " ")
    assert read.study.hash not in page
    assert "# every byte of it is approved, this line too" in page


def test_a_simulation_has_a_resolved_hash_and_no_study_hash():
    study = ar.Study.of("fedavg", data={"name": "heart_disease"}, study={"rounds": 1})
    run = study.run(None, baselines=False)
    told = run.to_json()

    assert (told["study_hash"], told["resolved_hash"]) == (None, study.hash)
    assert (told["engine"], told["over"]) == ("local", "all test points at once")
    assert "Study hash" not in render(run) and "Resolved hash" in render(run)


def test_the_engine_is_the_network(study):
    _, read, _, _ = study

    assert read.to_json()["engine"] == "network"
    assert "network: every site computes where its data is" in text_of(render(read))
    json.dumps(read.to_json())


# -- what left -------------------------------------------------------------------------------------


def test_all_numbers_that_leave_are_in_the_table(study):
    """E4: bytes as the sites' own audit logs have them; three sums for each feature, not two."""
    _, read, _, sites = study
    left = read.scorecard.privacy.left
    times = {ONCE: 1, EVERY_ROUND: read.done, EVERY_EVALUATION: len(read.history)}
    begins = {"sums": "of each feature", "upload": "upload", "ask": "question"}
    claimed = {
        kind: sum(e.bytes * times[e.when] for e in left if e.what.startswith(begin))
        for kind, begin in begins.items()
    }
    logged = dict.fromkeys(claimed, 0)
    for entry in sites[0].audit.entries():
        if entry.what == "sent" and entry.detail["kind"] in logged:
            logged[entry.detail["kind"]] += entry.detail["bytes"]

    assert claimed == logged
    (sums,) = [each for each in left if each.what.startswith("of each feature")]
    assert sums.numbers == 3 * read.data.shape[0]
    page = text_of(render(read))
    for each in left:
        assert f"{each.what} {each.when} {each.numbers:,} {each.bytes:,} {each.seen_by}" in page


def test_counts_are_in_the_table_where_they_leave(played):
    def names(kind):
        return {each.what for each in played(kind)[1].scorecard.privacy.left}

    with_uploads = "number of training points, with each upload"
    assert with_uploads in names("untold") and with_uploads not in names("some tell")
    assert "number of test points" not in names("untold")
    assert "number of test points" in names("all tell")
    assert {"question for a model of its own", "the same of its own model"} <= names("all tell")


# -- who was in it ---------------------------------------------------------------------------------


def test_an_evaluation_says_which_sites_scored(played):
    """E9: the journal keeps it, and report, CSV and JSON show it."""
    went, read, _, _ = played("untold")
    three = list(NAMES[:3])

    for run in (went, read):
        assert [entry["sites"] for entry in run.history] == [
            list(NAMES), list(NAMES), three, three, list(NAMES), list(NAMES),
        ]  # fmt: skip
    assert [row["absent"] for row in table(contents(read)["history.csv"])] == [
        "", "", "ulm", "ulm", "", "",
    ]  # fmt: skip
    assert read.to_json()["history"][2]["sites"] == three
    page = text_of(render(read))
    assert "Hollow: evaluations without ulm (rounds 3, 4)" in page
    (axes, _) = curve(read).axes
    (hollow,) = [line for line in axes.lines if line.get_marker() == "o"]
    assert hollow.get_xdata().tolist() == [3, 4]
    assert [text.get_text() for text in axes.texts if "without" in text.get_text()] == [
        "without ulm"
    ]


def test_a_paused_site_received_nothing(played):
    _, read, _, _ = played("untold")
    reached = [cohort.reached for cohort in read.participation]

    assert [cohort.missing for cohort in read.participation][2:4] == [{3: Cause("paused")}] * 2
    assert reached == [4, 4, 3, 3, 4, 4]
    letters = read.spent.down / read.anatomy.bytes_down
    assert letters - sum(reached) in (0, 1)  # one it may have got just before it paused
    each = read.scorecard.efficiency.bytes_down_per_party_round
    assert each == pytest.approx(read.spent.down / sum(reached))


@pytest.mark.parametrize(
    ("cause", "reached"),
    [("away", 1), ("paused", 1), ("left", 1), ("revoked", 1), ("silent (trains, 5 gradients)", 2),
     ("too slow (trains, 5 gradients)", 2), ("diverged", 2), ("not needed", 2)],
)  # fmt: skip
def test_who_was_asked_received_the_work(cause, reached):
    assert Cohort(np.arange(2), np.arange(1), np.ones(1), {1: Cause.read(cause)}).reached == reached


def weak_hospital_leaves(target=None):
    """A fake run of six evaluations; without the weak site the mean is higher."""
    run = fake_run(3, 6, 6, names=NAMES[:3], values=[0.6, 0.7, 0.75, 0.9, 0.78, 0.77], levels=None,
                   missing=0.0, metric="auc", target=target)  # fmt: skip
    facts = dict.fromkeys(NAMES[:3], Facts((1,), 2, "classification", 0, 0))
    run.data = shadow("stroke", facts)
    for entry in run.history:
        entry |= {"over": ALIKE, "sites": list(NAMES[:3])}
    run.history[3]["sites"] = list(NAMES[:2])
    return run


def test_the_best_value_is_one_of_all_sites():
    """E9: "best 0.900 in round 4" was the absence of a weak hospital."""
    run = weak_hospital_leaves()
    said = " ".join(text for text, _ in said_of(run))

    assert "best 0.780 in round 5" in said
    run.history = run.history[:4]
    assert "over sites, each the same, without kiel" in " ".join(t for t, _ in said_of(run))


def test_a_target_is_not_reached_by_an_absence():
    run = weak_hospital_leaves(target=0.85)

    assert run.rounds_to(0.85) is None
    assert "target 0.850 not reached yet" in " ".join(text for text, _ in said_of(run))


def test_a_journal_that_does_not_say_who_scored_is_read(played):
    _, read, _, _ = played("some tell")
    with Folder.open(read.folder).journal._transaction() as connection:
        rows = connection.execute(sa.select(EVALUATIONS)).all()
    old = [{k: v for k, v in row.entry.items() if k not in ("over", "sites")} for row in rows]
    read = replace(read, history=old)

    assert read.over == SITES
    assert not any(absent(read.history))
    assert "of which the weights are not on record" in text_of(render(read))
    assert "mean AUC over sites" in " ".join(row.name for row in read.scorecard.rows())
