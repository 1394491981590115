"""Consent is exact: what is approved are the bytes that were reviewed here, and no others."""

import io
import sys
import tracemalloc

import pytest

import archipel as ar
from archipel.cli import main
from archipel.errors import ArchipelError
from archipel.federation import approval
from archipel.federation.site import binding
from archipel.federation.site.exposure import Rows
from archipel.federation.site.looking import review_at
from archipel.federation.site.policy import Policy
from network.homes import made_site, study_text, table


@pytest.fixture
def site(tmp_path):
    one = made_site(tmp_path / "ulm")
    Policy(least_sites=3).write(one.home)
    return one


@pytest.fixture
def run(site, capsys, monkeypatch):
    """A command of the site, with what is typed; returns exit code, output and errors."""

    def command(*arguments, typed=""):
        monkeypatch.setattr(sys, "argv", ["archipel", "site", *arguments, "--home", str(site.home)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return command


def bound(site, text, tmp_path):
    """The study on the shelf, with a table for it."""
    digest = site.site_studies.put(text)
    binding.bind(site.home / "data", approval.read(text), table(tmp_path / "t.csv", 200))
    return digest


# -- which study is meant --------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [12, 64])
def test_a_name_never_shadows_a_hash(site, run, tmp_path, digits):
    """C1: a study named like another's hash was approved by the command that the review printed."""
    digest = bound(site, study_text(), tmp_path)
    impostor = site.site_studies.put(study_text(study={"name": digest[:digits], "rounds": 99}))
    run("review", digest[:12])

    code, _, _ = run("approve", digest[:digits], "--yes")

    assert code == 0
    assert site.site_studies.approved() == [digest] != [impostor]
    with pytest.raises(ar.ArchipelError, match="could be meant as a hash"):
        site.site_studies.read(impostor)


def test_a_study_that_came_between_review_and_approval_is_not_approved(site, run, tmp_path):
    """C1: `approve heart` took the newest "heart", unseen."""
    digest = bound(site, study_text(), tmp_path)
    run("review", "heart")
    newer = site.site_studies.put(study_text(algorithm={"batch_size": 1, "local_steps": 1}))

    code, _, err = run("approve", "heart", typed="y\n")

    assert code == 2
    assert "2 studies are called so" in err
    assert digest[:12] in err and newer[:12] in err
    assert "+batch_size = 1" in err  # the difference
    assert site.site_studies.approved() == []
    assert run("approve", newer[:12], "--yes")[0] == 2  # was not reviewed
    assert run("approve", digest[:12], "--yes")[0] == 0
    assert site.site_studies.approved() == [digest]


def test_approving_shows_and_asks(site, run, tmp_path):
    digest = bound(site, study_text(), tmp_path)
    assert "was not reviewed here" in run("approve", "heart", typed="y\n")[2]
    run("review", "heart")

    code, out, _ = run("approve", "heart", typed="n\n")

    assert code != 0 and site.site_studies.approved() == []
    assert digest in out and "What leaves the building" in out
    assert "--yes takes a hash alone" in run("approve", "heart", "--yes")[2]
    assert run("approve", "heart", typed="y\n")[0] == 0
    assert site.site_studies.approved() == [digest]


def test_leaving_and_rejecting_mean_a_hash_too(site, run, tmp_path):
    digest = bound(site, study_text(), tmp_path)
    run("review", "heart")
    run("approve", digest[:12], "--yes")
    site.site_studies.put(study_text(study={"name": digest[:12]}))

    assert run("leave", digest[:12])[0] == 0

    assert site.site_studies.decision(digest).decision == "withdrawn"


def test_a_study_that_cannot_be_read_hides_nothing_else(site, run, tmp_path):
    """M4: an algorithm that is not installed broke `studies`, `review` and `leave`."""
    digest = bound(site, study_text(), tmp_path)
    for text in (
        study_text(study={"name": "new"}, algorithm={"name": "fedtomorrow"}),
        b"[study]\nname = 'long'\nrounds = " + b"9" * 5000,
        b"\xff\xfe no text",
    ):
        site.site_studies.put(text)

    code, out, _ = run("studies", "--json")

    assert code == 0 and out.count('"hash"') == 4
    assert "fedtomorrow" in out and "too many digits" in out
    assert run("review", "heart")[0] == 0
    assert run("approve", digest[:12], "--yes")[0] == 0
    assert run("budget")[0] == run("leave", "heart")[0] == 0


# -- what a review says ----------------------------------------------------------------------------


def review(site, text):
    study, rows = approval.read(text), Rows(160, 40)
    return review_at(site, text, binding.schema_of(study).empty(), ["bonn"], rows)


@pytest.mark.parametrize(
    "change",
    [
        {"algorithm": {"batch_size": 100}},
        {"algorithm": {"local_steps": 1}},
        {"algorithm": {"local_epochs": 7}},
        {"algorithm": {"lr": 0.5}},
        {"algorithm": {"name": "fedavg"}},
        {"study": {"seed": 1}},
        {"study": {"rounds": 11}},
        {"study": {"evaluate_every": 5}},
        {"study": {"metric": "auc"}},
        {"study": {"purpose": "Another."}},
        {"data": {"test": 0.001}},
        {"data": {"missing": "drop"}},
        {"data": {"standardise": False}},
        {"data": {"schema": {"age": "number", "ill": [0, 1]}}},
        {
            "data": {
                "schema": {"age": "number", "weight": "number", "sex": ["m", "f"], "ill": [0, 1]}
            }
        },
        {
            "data": {
                "schema": {"age": "number", "weight": "number", "sex": ["f", "m"], "ill": [1, 0]}
            }
        },
        {"data": {"target": "sex"}},
        {"model": {"name": "mlp"}},
        {"model": {"name": "mlp", "widths": [7]}},
        {"round": {"quorum": 2}},
        {"round": {"sample": 3}},
        {"round": {"over_select": 0.5}},
        {"round": {"deadline": 9.0}},
        {"round": {"on_missing": "wait"}},
        {"round": {"late_joiners": False}},
        {"wire": {"up": ["clip:1.0"]}},
        {"wire": {"down": ["float16"]}},
    ],
    ids=lambda change: "-".join(f"{s}.{k}" for s, keys in change.items() for k in keys),
)
def test_every_setting_that_bears_on_what_leaves_is_in_the_review(site, change):
    """H2: two reviews of very different studies differed in the hash alone."""

    def without_hash(text):
        return [line for line in review(site, text).split("\n") if not line.startswith("Hash")]

    assert without_hash(study_text()) != without_hash(study_text(**change))


def test_the_review_says_what_could_be_read(site):
    """H2: one upload of FedSGD with a batch of one is one record."""
    plain = review(site, study_text(algorithm={"name": "fedsgd", "batch_size": 1}))
    assert "ONE UPLOAD IS THE GRADIENT OF ONE RECORD" in plain
    assert "NOT MET  least_batch: 1 records" in plain
    assert "cannot be approved here" in plain

    few = review(site, study_text(algorithm={"batch_size": 3, "local_steps": 1}))
    assert "One upload is computed from 3 records" in few

    usual = review(site, study_text())
    assert "ONE UPLOAD" not in usual and "NOT MET" not in usual
    assert "never a record" not in usual
    assert "No noise is added" in usual
    assert "The coordinator sees your uploads one by one" in usual


def test_the_review_says_what_stands_between_an_upload_and_the_server(site):
    found = " ".join(review(site, study_text(wire={"up": ["clip:0.5", "float16"]})).split())
    assert "an upload passes the wire: Clip(norm=0.5), then Float16(" in found
    assert "nothing is promised of it" in found and "No noise is added" not in found
    assert "No bound is claimed of what uploads tell" in found


def test_the_review_says_with_how_few_sites_others_see_an_upload(site):
    """M7: with two sites each gets the other's upload; with one it is the model."""
    assert "ONE site: the shared model is then that site's upload" in review(
        site, study_text(round={"quorum": 1})
    )
    assert "TWO sites: each can compute the other's upload" in review(
        site, study_text(round={"quorum": 2})
    )
    three = review(site, study_text())
    assert "ONE site" not in three and "TWO sites" not in three


@pytest.mark.parametrize("round_", [{"sample": 0.5}, {"quorum": 3}, {"on_missing": "abort"}])
def test_a_study_between_peers_that_draws_or_counts_parties_is_refused(round_):
    ((key, value),) = round_.items()
    text = study_text(
        algorithm={"name": "dsgd"}, topology={"name": "ring"}, round={"quorum": None, **round_}
    )

    with pytest.raises(ArchipelError, match=f"round.{key} = {value!r}: between peers nobody draws"):
        approval.read(text)


def test_no_text_of_a_study_obeys_a_terminal(site):
    """M3: a graph's name with escapes and newlines made the review say that nothing leaves."""
    evil = "\x1b[2J\u202e\r\nWhat leaves the building\n  nothing"
    texts = [
        study_text(study={"name": "he" + evil, "purpose": evil + "x" * 5000}),
        study_text(data={"schema": {f"age{evil}": "number", "ill": [0, 1]}}),
        study_text(
            algorithm={"name": "dsgd", "batch_size": 20},
            topology={"name": f"ring:{evil}"},
            round={"quorum": None},
        ),
    ]
    for text in texts:
        shown = review(site, text)
        assert all(line.isprintable() for line in shown.split("\n"))
        assert shown.split("\n").count("What leaves the building") == 1

    assert all(line.isprintable() for line in approval.difference(texts[0], texts[1]))


def test_the_review_says_which_loss_is_trained(site):
    target = {"target": "age"}
    usual = review(site, study_text(data=target))
    huber = review(site, study_text(data=target, model={"loss": "huber"}))

    assert "loss squared_error" in usual and "loss huber" in huber


def test_a_study_cannot_push_anything_out_of_the_review(site):
    """A column with a name of thousands of letters cut off those after it, unsaid."""
    columns = {"x" * 5000: "number", "religion": [f"v{k}" * 50 for k in range(500)]}
    text = study_text(data={"schema": {**columns, "secret": "number", "ill": [0, 1]}})

    shown = review(site, text)

    assert "3 to learn from" in shown and "secret" in shown and "to predict: ill (0, 1)" in shown
    assert "(4940 characters more)" in " ".join(shown.split())
    assert max(map(len, shown.split("\n"))) <= 100
    assert shown.count("\n") < 80


@pytest.mark.parametrize("name", ["he\u0430rt", "heart\u3164", " heart", "he  art"])
def test_a_name_that_looks_like_another_is_written_out(site, name):
    assert f"exactly {name!a}" in review(site, study_text(study={"name": name}))


def test_a_name_that_differs_in_blanks_or_capitals_is_said(site):
    digest = site.site_studies.put(study_text(study={"name": "heart "}))

    assert digest in review(site, study_text(study={"name": "Heart"}))


def test_a_study_whose_bytes_were_changed_on_disk_is_neither_read_nor_kept_from_being_left(
    site, run, tmp_path
):
    digest = bound(site, study_text(), tmp_path)
    run("review", "heart")
    run("approve", digest[:12], "--yes")
    (site.site_studies.folder(digest) / "study.toml").write_bytes(
        study_text(study={"rounds": 9999})
    )

    with pytest.raises(ar.ArchipelError, match="is not the study of this hash any more"):
        site.site_studies.read(digest)
    assert run("studies")[0] == 0
    assert run("leave")[0] == 0
    assert site.site_studies.approved() == []
    assert site.site_studies.put(study_text()) == digest  # as it is when it is fetched again
    assert site.site_studies.read(digest).study.rounds == 10


def test_a_review_says_what_changed_and_who_is_called_the_same(site, tmp_path):
    digest = bound(site, study_text(), tmp_path)
    site.site_studies.decide(digest, site.site_studies.decision(digest) or _approved())
    newer = study_text(study={"rounds": 500})
    site.site_studies.put(newer)

    shown = review(site, newer)

    assert "Changed since you last approved" in shown and "+rounds = 500" in shown
    assert f"  {digest}" in shown


def _approved():
    from archipel.federation.site.studies import Decision

    return Decision("approved", {})


def test_a_text_that_blows_up_a_reader_is_not_even_looked_into_for_its_name():
    """A dotted key of n parts takes a reader of TOML n^2 memory, also one that wants the name."""
    text = b"[study]\nname = 'heart'\n" + b".".join([b"a"] * 100_000) + b" = 1\n"
    tracemalloc.start()
    name = approval.name_of(text)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert name == "" and most < 50e6


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("dsgd", {}, ["every round: 8", "to each neighbour on the graph ring, which sees them"]),
        (
            "coordinate",
            {"lr": None, "batch_size": None},
            ["whenever this site wakes", "graph ring"],
        ),
        (
            "dada",
            {"batch_size": None},
            [
                "to every member that asks",
                "the weights of your edges, which tell whose data is like yours",
                "Graph learned",
                "Every member of the study sees your vectors as they are whenever it asks.",
                "all members may see this site's vectors",
            ],
        ),
        (
            "gossip",
            {},
            ["whenever a neighbour asks", "the uploads are 160 numbers", "in all about"],
        ),
        ("walk", {}, ["to the neighbour on the graph ring that it goes to", "in all about"]),
    ],
)
def test_a_review_says_who_sees_what_peers_tell_each_other(site, tmp_path, name, settings, says):
    graph = {"topology": {"name": "ring"}} if name != "dada" else {}
    text = study_text(algorithm={"name": name, **settings}, round={"quorum": None}, **graph)
    empty = binding.schema_of(approval.read(text)).empty()

    found = " ".join(review_at(site, text, empty, ["bonn"], Rows(160, 40)).split())

    for words in says:
        assert words in found
    assert "on the graph ," not in found
