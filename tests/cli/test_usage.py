"""Help with an example for every verb, and one sentence for whatever is typed wrongly."""

import os
import re

import pytest
from typer.main import get_command

from archipel.cli import app
from archipel.cli.later import LATER

VERBS = sorted(name for name in get_command(app).commands if name not in LATER)


def with_words(verb, command):
    """The commands of a verb: `archipel site data add` is one."""
    inner = getattr(command, "commands", None)
    if inner is None:
        return [verb]
    return [found for word, each in inner.items() for found in with_words(f"{verb} {word}", each)]


COMMANDS = [each for v in VERBS for each in with_words(v, get_command(app).commands[v])]


def test_the_verbs_of_the_design_are_there():
    wanted = ["demo", "run", "list", "show", "data", "runs", "report", "resume", "export", "new"]

    assert {*wanted} <= {*VERBS}


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_has_an_example_and_json(archipel, verb):
    done = archipel(*verb.split(), "--help")

    assert done.code == 0
    assert "--json" in done.out or verb.endswith(" up")  # which ends when it is told to
    examples = re.findall(rf"^\s+archipel {verb}\b.*$", done.out, re.MULTILINE)
    assert examples


@pytest.mark.parametrize("verb", COMMANDS)
def test_examples_are_spelt_as_the_verb_takes_them(archipel, verb):
    done = archipel(*verb.split(), "--help")
    flags = {*re.findall(r"^\s+(--[\w-]+)", done.out, re.MULTILINE)}
    flags |= {*re.findall(r"/\s*(--no-[\w-]+)", done.out)}
    for example in re.findall(rf"archipel {verb}\b.*$", done.out, re.MULTILINE):
        for flag in re.findall(r"--[\w-]+", example):
            assert flag in done.out.replace(example, "")


def test_help_is_quick_to_load(process):
    done = process("--help")

    assert done.code == 0 and all(verb in done.out for verb in VERBS)


@pytest.mark.parametrize("verb", sorted(LATER))
def test_later_verbs_say_so(archipel, verb):
    done = archipel(verb, "whatever", "--sites", "4", "--json")

    assert done.code == 2 and done.out == ""
    assert f"'archipel {verb}' comes in a later version; for now archipel" in done.sentence


@pytest.mark.parametrize(
    "arguments",
    [
        ["demoo"],
        ["run"],
        ["run", "fedavg", "--nonsense"],
        ["run", "fedavg", "--rounds", "many"],
        ["list", "things"],
        ["demo", "--splits", "0"],
        ["--verbose"],
    ],
)
def test_wrong_usage_is_two(archipel, arguments):
    done = archipel(*arguments)

    assert done.code == 2 and done.out == ""
    assert "Usage: " in done.err and "--help" in done.err


RUN = ["run", "fedavg", "--data", "heart_disease"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "nothing.toml"], "study 'nothing.toml': cannot be read (No such file"),
        (["run", "folder.toml"], "study 'folder.toml': cannot be read (Is a directory"),
        (["run", "binary.toml"], "study 'binary.toml': is not text in UTF-8."),
        (["run", "wrong.toml"], "wrong.toml: unknown key of [study] 'round': did you mean"),
        (["run", "fedavgg"], "unknown algorithm 'fedavgg': did you mean 'fedavg'?"),
        (["run", "no.py", "--data", "moons"], "cannot be read (No such file"),
        (["run", "fedavg"], "data.name is missing"),
        (["run", "fedavg", "--data", "heart"], "'heart': did you mean 'heart_disease'"),
        (["run", "fedavg", "--data", "no.csv"], "data.target is missing"),
        ([*RUN, "--rounds", "0"], "study.rounds = 0: give a whole number from 1."),
        ([*RUN, "--seed", "-1"], "study.seed = -1: give a whole number from 0."),
        ([*RUN, "--sample", "lots"], 'round.sample = "lots": give a number.'),
        ([*RUN, "--sample", "9"], "sample = 9: only 4 parties have training points"),
        ([*RUN, "--parties", "9"], 'say data.partition = "iid" as well'),
        ([*RUN, "--partition", "dealt"], "[data] "),
        ([*RUN, "--model", "deep"], "unknown model 'deep'"),
        ([*RUN, "--model", "cnn"], "model"),
        ([*RUN, "--workers", "0"], "workers = 0: give at least 1"),
        ([*RUN, "--engine", "network"], "a study between sites is run by 'archipel coordinator'"),
        ([*RUN, "--engine", "rai"], "unknown engine 'rai'"),
        ([*RUN, "--set", "lr=1"], "'lr': write section.field=value"),
        ([*RUN, "--set", "algorithm.lr"], "--set algorithm.lr: write section.field=value"),
        ([*RUN, "--set", "algorithm.lr=" + "[" * 3000], "algorithm.lr = "),
        ([*RUN, "--set", "a\nb.c=1"], "unknown section 'a\\nb'"),
        ([*RUN, "--set", "algorithm.lr=fast"], 'algorithm.lr = "fast": give a number'),
        ([*RUN, "--set", "study.metric=auk"], "unknown study.metric 'auk': did you mean 'auc'?"),
        (
            [*RUN, "--set", "study.metric=rmse"],
            "unknown metric of classification with 2 classes 'rm",
        ),
        ([*RUN, "--set", "simulate.away.oslo=1-2"], "unknown party 'oslo'"),
        ([*RUN, "--set", "topology.name=ring"], "topology 'ring': FedAvg has a server"),
        ([*RUN, "--out", "a-file"], "out = 'a-file': cannot be written to (File exists)"),
        ([*RUN, "--out", "/proc/nowhere"], "out = '/proc/nowhere': cannot be written to"),
        (["run", "dsgd", "--data", "heart_disease"], "DSGD mixes with its neighbours: name a"),
        (["show", "fedavgg"], "unknown algorithm, model or step 'fedavgg': did you mean 'fedavg'?"),
        (["show", "no.py"], "cannot be read (No such file"),
        (["data", "mnits"], "unknown dataset 'mnits': did you mean 'mnist'?"),
        (["data", "no.toml"], "study 'no.toml': cannot be read"),
        (["new", "."], "'.': name a study with letters, digits"),
        (["run", "fedavg", "--data", ""], "unknown dataset ''"),
        (["new", "a/b"], "'a/b': name a study with letters, digits"),
        (["new", "wrong"], "'wrong.toml' is there already: name another, or remove it."),
        (["new", "x", "--algorithm", "no"], "unknown algorithm 'no'"),
        (["report"], "no run in 'runs': start one with 'archipel run'"),
        (["resume", "x", "--out", "elsewhere"], "no run in 'elsewhere'"),
        (["export", "x"], "no run in 'runs'"),
    ],
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence_and_leaves_nothing(archipel, tmp_path, arguments, said):
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "binary.toml").write_bytes(bytes(range(256)))
    (tmp_path / "wrong.toml").write_text("[study]\nround = 3\n")
    (tmp_path / "a-file").write_text("")
    before = {path.name for path in tmp_path.iterdir()}
    done = archipel(*arguments, "--json")

    assert done.code == 2 and done.out == ""
    assert said in done.sentence
    assert {path.name for path in tmp_path.iterdir()} <= before


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(process, shell):
    told = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # whichever shell this runs in
    done = process("--show-completion", shell, env={**os.environ, **told})

    assert done.code == 0 and "_ARCHIPEL_COMPLETE" in done.out


def test_completion_knows_names(process):
    def complete(*words):
        words = ["archipel", *words]
        variables = {
            "_ARCHIPEL_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        }
        return process(env={**os.environ, **variables}).out.split()

    assert complete("run", "fedavg", "--data", "heart") == ["heart_disease"]
