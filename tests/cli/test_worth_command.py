"""`archipel worth`."""

import json

from archipel.study.file import Study


def test_the_command_repeats_a_run(archipel, tmp_path):
    study = Study.of(data={"name": "heart_disease"}, study={"rounds": 2, "name": "who"})
    run = study.run(tmp_path / "runs", workers=1, baselines=False)
    told_ = archipel("worth", "who", "--json").json

    assert all(row.keys() >= {"party", "shapley", "error"} for row in told_["parties"])
    assert json.loads((run.folder / "worth.json").read_text()) == told_
    assert "Shapley value" in archipel("worth", "who").out
