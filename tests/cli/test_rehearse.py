"""`archipel rehearse`: a federation of processes, in one command."""

from archipel.federation.audit import check
from archipel.federation.coordinator import Home
from archipel.federation.site import Site

STUDY = """
[study]
name = "heart"
rounds = 2
[data]
name = "heart_disease"
[algorithm]
name = "scaffold"
lr = 0.05
"""


def test_a_rehearsal_leaves_what_every_institution_would_have(archipel, tmp_path):
    (tmp_path / "heart.toml").write_text(STUDY)
    where = tmp_path / "out"
    done = archipel("rehearse", tmp_path / "heart.toml", "--sites", 2, "--out", where, "--json")

    assert done.code == 0, done.err
    assert done.json["rounds"] == 2
    folder = where / "heart-001"
    assert sorted(path.name for path in folder.iterdir()) == [
        "cleveland",
        "coordinator",
        "hungarian",
    ]
    for one in (Home(folder / "coordinator"), Site(folder / "hungarian")):
        assert check(one.audit.path, one.identity.public) > 3
    assert oct((folder / "hungarian" / "site.pem").stat().st_mode)[-3:] == "600"


def test_more_sites_than_parties_are_refused(archipel, tmp_path):
    (tmp_path / "heart.toml").write_text(STUDY)
    done = archipel("rehearse", tmp_path / "heart.toml", "--sites", 9, "--out", tmp_path / "out")

    assert done.code == 2
    assert "--sites 9: the study's data has 4 parties" in done.sentence
    assert not list((tmp_path / "out").iterdir())
