"""`archipel worth`."""

import json

from archipel.store.journal import Journal
from archipel.study.file import Study


def test_the_command_repeats_a_run(archipel, tmp_path):
    study = Study.of(data={"name": "heart_disease"}, study={"rounds": 2, "name": "who"})
    run = study.run(tmp_path / "runs", workers=1, baselines=False)
    told_ = archipel("worth", "who", "--json").json

    assert all(row.keys() >= {"party", "shapley", "error"} for row in told_["parties"])
    assert json.loads((run.folder / "worth.json").read_text()) == told_
    assert "Shapley value" in archipel("worth", "who").out


def test_the_report_has_a_table_and_a_figure_of_it(archipel, tmp_path):
    study = Study.of(
        data={"name": "heart_disease"},
        study={"rounds": 2, "name": "who"},
        adversary={"parties": ["va"], "attack": "free_rider"},
    )
    run = study.run(tmp_path / "runs", workers=1, baselines=False)
    archipel("report", "who")
    assert "Who contributed" not in (run.folder / "report.html").read_text()
    found = archipel("worth", "who", "--json").json
    assert archipel("report", "who", "--figures", "figures", "--json").json["worth"] == found
    page = (run.folder / "report.html").read_text()

    assert '<h2 id="worth">Who contributed</h2>' in page and "It took 32 models" in page
    assert all(f"{row['shapley']:.4f}</td>" in page for row in found["parties"])
    assert page.count("<td>sends next to nothing</td>") == 1
    assert (tmp_path / "figures" / "worth.svg").is_file()


def test_a_run_between_sites_is_refused(archipel, tmp_path, monkeypatch):
    study = Study.of(data={"name": "heart_disease"}, study={"rounds": 1, "name": "who"})
    study.run(tmp_path / "runs", workers=1, baselines=False)
    row = Journal.row
    facts = {"description": {"facts": {}}}
    monkeypatch.setattr(Journal, "row", lambda journal: {**row(journal), **facts})

    told_ = archipel("worth", "who")
    assert (
        told_.code and "run 'who-001' was between sites: their uploads were not kept" in told_.err
    )
