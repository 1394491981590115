"""Promises and ledgers that are none, as people type them: one sentence, and nothing is spent."""

import re
import sys

import pytest
import tomli_w

from archipel.cli import main
from archipel.federation.coordinator.folder import CoordinatorFolder
from archipel.federation.site.policy import Policy
from network.homes import STUDY, made_site
from network.test_privacy import Desk, run, site  # noqa: F401

RECORD = {"unit": "record", "epsilon": 2.0}
FINITE = "give a finite number above 0"


def no_study(privacy, **sections):
    return {**STUDY, "privacy": privacy, **sections}


@pytest.mark.parametrize(
    ("study", "said"),
    [
        (no_study({**RECORD, "epsilon": 0}), f"privacy.epsilon = 0: {FINITE}."),
        (no_study({**RECORD, "epsilon": -1.5}), f"privacy.epsilon = -1.5: {FINITE}."),
        (no_study({**RECORD, "clip": 0}), f"privacy.clip = 0: {FINITE}"),
        (no_study({**RECORD, "delta": 0}), "privacy.delta = 0: give a number between 0 and 1."),
        (no_study({**RECORD, "delta": 1.0}), "privacy.delta = 1: give a number between 0 and 1."),
        (no_study({"unit": "record", "noise": 0}), f"privacy.noise = 0: {FINITE}."),
        (no_study({"epsilon": 2.0}), "privacy.epsilon = 2: say whom it protects, privacy.unit ="),
        (
            no_study(RECORD, algorithm={"name": "pefll", "batch_size": 20}),
            'privacy.unit = "record": PeFLL asks for me.examples, which are the records themselves',
        ),
        (
            no_study({**RECORD, "unit": "party"}, algorithm={"name": "pefll", "batch_size": 20}),
            'privacy.unit = "party": PeFLL asks the server for a model',
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_coordinator_takes_no_study_whose_promise_is_none(
    study, said, tmp_path, capsys, monkeypatch
):
    home = CoordinatorFolder.create(tmp_path / "c", "test", "localhost:1")
    (tmp_path / "study.toml").write_text(tomli_w.dumps(study))
    command = ["archipel", "coordinator", "submit", str(tmp_path / "study.toml")]
    monkeypatch.setattr(sys, "argv", [*command, "--home", str(home.path)])
    with pytest.raises(SystemExit) as end:
        main()
    err = capsys.readouterr().err
    assert end.value.code == 2 and err.count("\n") == 1
    assert said in re.sub(r"(\d)\.0\b", r"\1", err)
    with home.registry() as registry:
        assert registry.studies() == []


def untouched(site):  # noqa: F811
    """Nothing was approved, reserved or spent."""
    kinds = {each.what for each in site.audit.entries()}
    return site.site_studies.approved() == [] and not kinds & {"reserved", "spent", "approved"}


@pytest.mark.parametrize(
    ("privacy", "policy", "code", "said"),
    [
        ({"delta": 0.01}, [], 2, "privacy.delta = 0.01: a party has 160 records, and to publish"),
        ({}, ["epsilon=2.5", "delta=0.01"], 2, "delta = 0.01: 160 training rows here, so give"),
        ({"epsilon": None, "noise": 0.3}, ["epsilon=0.5"], 4, "epsilon = 0.5: ε = 0 was spent by"),
        ({"unit": "party"}, ["epsilon=0.5"], 4, "epsilon = 0.5: ε = 0 was spent by other studies"),
        (None, ["epsilon=0.5"], 4, "the study promises no privacy, so no ε is enough for it"),
        (None, ["private=true"], 2, "private = true: the study promises no privacy"),
    ],
    ids=str,
)
def test_a_site_approves_no_promise_that_it_cannot_keep(
    site, run, tmp_path, privacy, policy, code, said  # noqa: F811
):  # fmt: skip
    """One round of it costs more than the whole budget, among others."""
    none = {"unit": None, "epsilon": None}
    desk = Desk(site, tmp_path, privacy=none if privacy is None else privacy)
    site.policy.changed(policy).write(site.home)
    run("site", "review", desk.digest[:12])
    found, _, err = run("site", "approve", desk.digest[:12], "--yes")
    line = err.strip().splitlines()[-1]
    assert found == code and line.startswith("archipel: study heart: this site's policy is not met")
    assert said in line and "'archipel site policy set" in line
    assert untouched(site)


@pytest.mark.parametrize("how", ["changed", "of another site"])
def test_with_a_ledger_that_is_none_nothing_is_decided(site, run, tmp_path, how):  # noqa: F811
    desk = Desk(site, tmp_path)
    assert run("site", "review", desk.digest[:12])[0] == 0
    other = made_site(tmp_path / "bonn", "bonn")
    Policy().write(other.home)
    log = (site if how == "changed" else other).audit
    for each in (1, 2):
        log.append("spent", study="x", round=each, table="t")
    content = log.path.read_bytes()
    site.audit.path.write_bytes(content.replace(b'"round":1', b'"round":7'))

    for command in (("review",), ("approve", "--yes"), ("budget",), ("studies",)):
        study = () if command[0] in ("budget", "studies") else (desk.digest[:12],)
        code, _, err = run("site", command[0], *study, *command[1:])
        line = err.strip().splitlines()[-1]
        assert code == 2, command
        assert "audit.jsonl': " in line and "is not" in line and "signed with this key" in line
    assert site.site_studies.approved() == []
