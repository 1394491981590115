# SPDX-License-Identifier: Apache-2.0
"""Make the reference from the code: python docs/reference/make.py

A test makes the pages anew and fails where they differ from those in the repository.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np
import tomli_w
import torch
from typer.main import get_command
from typer.testing import CliRunner

import archipel
from archipel.adversaries import ATTACKS
from archipel.algorithms import ALGORITHMS
from archipel.cli import app
from archipel.data import DATASETS
from archipel.exchange.sender import Sender
from archipel.exchange.varying import size_of
from archipel.graphs import TOPOLOGIES
from archipel.metrics import PRIMARY
from archipel.models import MODELS
from archipel.models.losses import LOSSES
from archipel.rules import RULES
from archipel.runs.simulation import Options
from archipel.study import fields
from archipel.study.file import _NOT_OPTIONS
from archipel.study.sections import SECTIONS, Device, Section
from archipel.training.optimisers import SGD, Adam
from archipel.training.schedules import Cosine, Decay, Inverse
from archipel.tree import leaves
from archipel.vector import ParamSpec
from archipel.wire import STEPS
from archipel.wire.chain import Chain
from archipel.wire.structured import Structured
from archipel.wire.wire import check_model

HERE = Path(__file__).parent
SOURCE = "../../src/archipel"
MADE = "<!-- made by docs/reference/make.py; do not edit -->\n\n"

NAMES = {  # the public names, by what one wants to do
    "Run": "simulate sweep Study Run list_runs live_view open_run resume",
    "Compare": "compare Comparison",
    "Data and models": "Federation load Model load_bundle",
    "scikit-learn": "FederatedClassifier FederatedRegressor",
    "Write an algorithm": "ServerAlgorithm PeerAlgorithm WalkAlgorithm Near Personal Party Uploads "
    "Each Batch Blueprint Descent Examples topology check_algorithm",
    "Between parties and server": "Adversary Privacy Wire check_step",
    "Algorithms": "Alone APGD1 APGD2 Choco Collaborative Coordinate Dada DadaBoosted Ditto DSGD "
    "FedAsync FedAvg FedBN FedBuff FedDyn FedNova FedOpt FedPer FedProx FedRep FedSGD FineTuned "
    "Gossip GradientTracking KNNPer L2GD PeFLL PerFedAvg PFedHN PFedMe Propagation Scaffold Walk "
    "Walkman",
    "Local steps and learning rates": "SGD Adam Cosine Decay Inverse",
    "Underneath": "LocalEngine Plan ArchipelError",
}
NOT_CALLED = ("Study", "Run", "Comparison", "Federation", "ArchipelError")


def pages() -> dict[str, str]:
    """Every page of the reference by its file name."""
    made = {
        "study.md": study(),
        "cli.md": cli(),
        "python.md": python(),
        "algorithms.md": algorithms(),
        "wire.md": wire(),
    }
    return {name: MADE + text.rstrip() + "\n" for name, text in made.items()}


# -- the study -------------------------------------------------------------------------------------


def study() -> str:
    lines = [
        "# The study file",
        "",
        "One TOML file with these sections; all may be left out but the data. `archipel new NAME` "
        "writes one with every key. A key that is not listed is an error that names the nearest "
        'right one. On the command line, `--set section.key=value`. The word `"none"` is '
        "Python's `None`; an object is a table with a name, "
        '`optimiser = {name = "adam", beta1 = 0.8}`.',
        "",
    ]
    for section, kind in SECTIONS.items():
        lines += [f"## [{section}]", "", *_keys(kind), "", *_further(section)]
    return "\n".join(lines)


def _keys(kind: type[Section]) -> Iterator[str]:
    """The keys of a section as a table."""
    yield from ["| key | kind | default | |", "|---|---|---|---|"]
    for key, info in kind.model_fields.items():
        wanted = re.sub("a whole number(,| or) a number", "a number", _wanted(info.annotation))
        plain = not info.is_required() and info.default is not None
        default = f"`{_toml(info.default)}`" if plain else ""
        about = _escaped(info.description or "")
        yield f"| `{key}` | {_escaped(wanted)}{_limits(info)} | {default} | {about} |"


def _wanted(hint: Any) -> str:
    """The kind of a key in words; a key without a value is left out, not "none"."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    optional = get_origin(hint) in (Union, UnionType) and len(kinds) < len(get_args(hint))
    return fields.wanted(Union[tuple(kinds)] if optional else hint)  # noqa: UP007


def _limits(info: Any) -> str:
    words = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}
    found = [
        f"{word} {getattr(each, limit):,}"
        for each in info.metadata
        for limit, word in words.items()
        if getattr(each, limit, None) is not None and getattr(each, limit) != 2**63
    ]
    return f", {' '.join(found)}" if found else ""


def _further(section: str) -> Iterator[str]:
    """What depends on the section's `name`."""
    if section == "data":
        yield from _options_of("data", {name: make for name, (make, _) in DATASETS.items()})
        yield "`partition`: see [partitions](#partitions)."
    elif section == "model":
        yield from _options_of("model", MODELS)
        yield f"`loss` is one of {', '.join(f'`{name}`' for name in LOSSES)}."
    elif section == "simulate":
        yield from ["### [simulate.devices.NAME]", "", "A class of devices.", "", *_keys(Device)]
    elif section == "algorithm":
        yield "The other keys are the fields of the algorithm that `name` names."
        for name, cls in ALGORITHMS.items():
            yield from ["", f"### {name}", "", *_fields(cls)]
        yield from ["", "### Tables with a name", "", "What `lr` and `optimiser` may be.", ""]
        yield from ["| name | keys | |", "|---|---|---|"]
        for cls in (SGD, Adam, Cosine, Decay, Inverse):
            own = ", ".join(f"`{_key(each)}`" for each in dataclasses.fields(cls))
            yield f"| `{cls.__name__.lower()}` | {own} | {_first_paragraph(cls)} |"
    elif section == "round":
        yield "A rule is a name or a file, then values of its fields: `krum:2`, `trimmed_mean:0.2`;"
        yield "`f` is how many uploads may lie, or their share. Rules by name:"
        yield from _named(RULES)
    elif section == "adversary":
        yield "The other keys are the fields of the attack that `attack` names:"
        yield from _named(ATTACKS)
    elif section == "wire":
        yield "A text is a name or a file, then values of its fields: `clip:1.0`, `mine.py:3`; see"
        yield "[own steps, rules and sums](../how-to-own-step.md). Steps by name:"
        yield from _named(STEPS)
    elif section == "study":
        tasks = ", ".join(f"{metric} for {task}" for task, metric in PRIMARY.items())
        yield f"Without `metric`, a run is judged by {tasks}."
    elif section == "topology":
        yield f"Names: {', '.join(f'`{form}`' for form in TOPOLOGIES.values())}."
    else:
        return
    yield ""
    if section == "data":
        yield from ["### Partitions", "", "```text", _partitions(), "```", ""]


def _partitions() -> str:
    doc = inspect.getdoc(sys.modules["archipel.data.partition"]) or ""
    return doc.partition("\n\n")[2]


def _named(parts: Mapping[str, Any]) -> Iterator[str]:
    """A table of dataclasses by name, with their fields."""
    yield from ["", "| name | fields | |", "|---|---|---|"]
    for name, cls in parts.items():
        own = ", ".join(f"`{_key(each)}`" for each in dataclasses.fields(cls))
        yield f"| `{name}` | {own} | {_first_paragraph(cls)} |"


def _options_of(section: str, makers: Mapping[str, Callable[..., Any]]) -> Iterator[str]:
    """A line for each thing that takes options of its own."""
    given = {*SECTIONS[section].model_fields, *_NOT_OPTIONS[section]}
    rows = []
    for name, make in makers.items():
        parameters = inspect.signature(make).parameters
        options = [
            f"`{key} = {_toml(parameters[key].default)}`"
            for key in fields.hints(make)
            if key not in given
        ]
        if options:
            rows.append(f"| `{name}` | {', '.join(options)} |")
    if rows:
        yield from ["Further keys, by `name`, with their defaults:", ""]
        yield from ["| name | keys |", "|---|---|", *rows, ""]


def _fields(cls: type) -> Iterator[str]:
    """A dataclass's fields, with the comments that stand beside them."""
    hints, said = fields.hints(cls), _comments(cls)
    yield from ["| key | kind | default | |", "|---|---|---|---|"]
    for each in dataclasses.fields(cls):
        default = "" if each.default is dataclasses.MISSING else _toml(fields.write(each.default))
        wanted = _escaped(fields.wanted(hints[each.name]))
        yield f"| `{each.name}` | {wanted} | `{default}` | {_escaped(said.get(each.name, ''))} |"


def _key(field: dataclasses.Field[Any]) -> str:
    missing = field.default is dataclasses.MISSING
    return field.name if missing else f"{field.name} = {_toml(field.default)}"


def _comments(cls: Any) -> dict[str, str]:
    """The comment on the line of each field, of those that the class inherits, too."""
    written = [base for base in reversed(cls.__mro__) if base.__module__.startswith("archipel")]
    text = "".join(map(inspect.getsource, written))
    return dict(re.findall(r"^    (\w+): [^\n]*?  # ([^\n]*)$", text, re.MULTILINE))


def _toml(value: Any) -> str:
    """A value on one line, as a study file has it."""
    if value is None:
        return '"none"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


# -- the command line ------------------------------------------------------------------------------


def cli() -> str:
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    shown = [name for name, command in commands.items() if not command.hidden]
    later = [name for name, command in commands.items() if command.hidden]
    parts = [
        "# The command line",
        "",
        "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 below quorum, 4 privacy budget spent, 130 "
        "stopped. Progress and errors go to standard error; with `--json`, one JSON document goes "
        f"to standard output. In a later version: {', '.join(f'`{name}`' for name in later)}.",
    ]
    verbs = [verb for name in shown for verb in _with_words(name, commands[name])]
    for name in ["", *verbs]:
        parts += ["", f"## archipel {name}".rstrip(), "", "```text", help_of(name).rstrip(), "```"]
    return "\n".join(parts)


def _with_words(verb: str, command: Any) -> Iterator[str]:
    """A verb, and those of `archipel VERB WORD`."""
    yield verb
    for word, inner in getattr(command, "commands", {}).items():
        yield from _with_words(f"{verb} {word}", inner)


def help_of(verb: str) -> str:
    """What `archipel VERB --help` prints, 80 columns wide."""
    arguments = [*verb.split(), "--help"]
    size = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
    shown = CliRunner().invoke(app, arguments, prog_name="archipel", env=size)
    assert shown.exit_code == 0, shown.output
    return "\n".join(line.rstrip() for line in shown.output.splitlines()) + "\n"


# -- Python ----------------------------------------------------------------------------------------


def python() -> str:
    listed = [name for names in NAMES.values() for name in names.split()]
    assert sorted(listed) == sorted(archipel.__all__), set(listed) ^ set(archipel.__all__)
    parts = ["# Python", "", "`import archipel as ar`; every name is `ar.NAME`."]
    for heading, names in NAMES.items():
        parts += ["", f"## {heading}"]
        for name in names.split():
            parts += ["", *_name(name, getattr(archipel, name), brief=heading == "Algorithms")]
            if name == "Study":
                parts += ["", "The sections and their keys: [the study file](study.md)."]
            if name == "simulate":
                parts += ["", "Options:", "", *_options()]
    return "\n".join(parts)


def _options() -> Iterator[str]:
    said = {
        key: info.description or ""
        for section in ("round", "simulate")
        for key, info in SECTIONS[section].model_fields.items()
    }
    said |= _comments(Options)
    yield from ["| option | kind | |", "|---|---|---|"]
    for key, hint in Options.__annotations__.items():
        kind = getattr(hint, "__forward_arg__", hint)
        yield f"| `{key}` | `{_escaped(str(kind))}` | {_escaped(said.get(key, ''))} |"


def _name(name: str, thing: Any, brief: bool) -> Iterator[str]:
    """A public name: how it is called, what it is for, what it has."""
    yield f"### {name}"
    yield ""
    if brief:
        page = f"algorithms.md#{name.lower()}"
        yield f"{_first_paragraph(thing)} [Fields and source]({page})."
        return
    called = name not in NOT_CALLED and not getattr(thing, "_is_protocol", False)
    if called:
        yield from ["```text", _signature(name, thing), "```", ""]
    yield _words(thing)
    if inspect.isclass(thing):
        rows = list(_members(thing, commented=called))
        if rows:
            yield from ["", "| | |", "|---|---|", *rows]


def _signature(name: str, thing: Any) -> str:
    signature = inspect.signature(thing)
    parts = []
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        star = "**" if each.kind is each.VAR_KEYWORD else ""
        default = "" if each.default is each.empty else f" = {each.default!r}"
        parts.append(f"{star}{each.name}: {_kind(each.annotation)}{default}")
    returns = signature.return_annotation
    arrow = "" if inspect.isclass(thing) else f" -> {_kind(returns)}"
    text = f"{name}({', '.join(parts)}){arrow}"
    if len(text) <= 96:
        return text
    lines = "".join(f"    {part},\n" for part in parts)
    return f"{name}(\n{lines}){arrow}"


def _kind(hint: Any) -> str:
    """An annotation as the source has it."""
    text = getattr(hint, "__forward_arg__", hint)
    return text if isinstance(text, str) else inspect.formatannotation(text)


def _members(cls: type, commented: bool) -> Iterator[str]:
    """What a class has of its own: fields, properties, methods.

    With `commented`, only fields that a comment says more of: the signature has the others.
    """
    said = _comments(cls)
    hints = {} if cls is archipel.Study else _annotations(cls)
    for name, hint in hints.items():
        if not name.startswith("_") and (name in said or not commented):
            yield f"| `{name}: {_escaped(_kind(hint))}` | {_escaped(said.get(name, ''))} |"
    for name, member in vars(cls).items():
        inner = getattr(member, "__func__", member)
        if name.startswith("_") or name in hints or not getattr(inner, "__doc__", None):
            continue
        if not getattr(inner, "__module__", "archipel").startswith("archipel"):
            continue
        if isinstance(member, property):
            yield f"| `.{name}` | {_escaped(_first_paragraph(member))} |"
        elif inspect.isfunction(inner):
            call = _call(inner, static=isinstance(member, staticmethod))
            yield f"| `.{name}{_escaped(call)}` | {_escaped(_first_paragraph(inner))} |"


def _annotations(cls: type) -> dict[str, Any]:
    """The fields of a class, and those that it inherits."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        found |= inspect.get_annotations(base) if base.__module__.startswith("archipel") else {}
    return found


def _call(function: Any, static: bool) -> str:
    """What a method takes, without the kinds."""
    names = list(inspect.signature(function).parameters.values())[0 if static else 1 :]
    shown = []
    for each in names:
        star = "**" if each.kind is each.VAR_KEYWORD else ""
        default = "" if each.default is each.empty else f"={each.default!r}"
        shown.append(f"{star}{each.name}{default}")
    return f"({', '.join(shown)})"


def _first_paragraph(thing: Any) -> str:
    doc = inspect.getdoc(thing) or ""
    return " ".join(doc.partition("\n\n")[0].split())


def _words(thing: Any) -> str:
    """A docstring without its example."""
    doc = inspect.getdoc(thing) or ""
    return doc.partition("\n>>>")[0].strip()


# -- algorithms ------------------------------------------------------------------------------------


def algorithms() -> str:
    parts = [
        "# Algorithms",
        "",
        "One file per paper; `archipel show NAME` prints it. Fields are spelt the same in a study "
        "file, on the command line and in Python.",
        "",
        "| name | class | |",
        "|---|---|---|",
    ]
    for name, cls in ALGORITHMS.items():
        link = f"[`{cls.__name__}`](#{cls.__name__.lower()})"
        parts.append(f"| `{name}` | {link} | {_first_paragraph(cls)} |")
    for cls in ALGORITHMS.values():
        module: ModuleType = sys.modules[cls.__module__]
        path = Path(inspect.getsourcefile(module) or "")
        code = path.read_text().partition('"""\n\n')[2]
        parts += ["", f"## {cls.__name__}", "", (inspect.getdoc(module) or "").strip(), ""]
        parts += [*_fields(cls), "", f"[{path.name}]({SOURCE}/algorithms/{path.name}):", ""]
        parts += ["```py", code.rstrip(), "```"]
    return "\n".join(parts)


# -- the wire --------------------------------------------------------------------------------------

EXAMPLES: dict[str, Any] = {  # a step of each kind, as the tables try it
    "clip": 1.0,
    "low_rank": 0.0625,
    "power_sgd": 2,
    "quantise": 8,
    "random_k": 0.01,
    "random_mask": 0.0625,
    "subsample": 0.0625,
    "top_k": 0.01,
}
SPEC = ParamSpec(("weight", "bias"), ((256, 1000), (256,)))


def wire() -> str:
    steps = {name: _step(name) for name in STEPS}
    lines = [
        "# The wire",
        "",
        "Steps of `[wire] up` and `down`, [one file each]"
        f"({SOURCE}/wire); [how they are used](../how-to-fewer-bytes.md), [how to write "
        "one](../how-to-own-step.md). The tables are found by trying.",
        "",
        "Bytes are those of a layer with 256 x 1000 weights and 256 biases, of which the weights "
        "are drawn at random, against four bytes a number. *Unbiased*: on average, what arrives is "
        "what was sent. *Linear*: a sum of what was sent can be undone, so a sum of which the "
        "server sees no part goes with it. *Feedback*: what was left out is kept, and sent the "
        "next time. *Down*: for what the server sends; *peers*: between neighbours; both send "
        "models, not changes, so what loses most of one is refused.",
        "",
        *_table(
            ["step", "values", "fewer bytes", "unbiased", "linear", "feedback", "down", "peers"],
            [_step_row(name, step) for name, step in steps.items()],
        ),
        "",
        "## Which go together",
        "",
        "A row's step before a column's, in `wire.up`. What is refused is refused before the "
        "first round, in the words below.",
        "",
    ]
    reasons: list[str] = []
    rows = []
    for first, a in steps.items():
        cells = []
        for b in steps.values():
            said = refusal((a, b))
            if said is None:
                cells.append("yes")
                continue
            said = said.replace(type(a).__name__, "*row*").replace(type(b).__name__, "*column*")
            if said not in reasons:
                reasons.append(said)
            cells.append(f"no: {reasons.index(said) + 1}")
        rows.append([f"`{first}`", *cells])
    lines += _table(["", *(f"`{name}`" for name in steps)], rows)
    lines += ["", *(f"{at}. {said}" for at, said in enumerate(reasons, 1)), ""]
    lines += [
        "Besides: `wire.sum` goes with steps that are linear (`common = true` makes `rotate`, "
        "`subsample`, `random_k`, `random_mask` and `low_rank` so: all parties of a round draw "
        "alike, and their errors no longer cancel); steps that restrict training (`low_rank`, "
        "`random_mask`) need uploads that are changes of the trained model, so SCAFFOLD's, "
        "L2GD's and APGD's are refused; a `round.rule` sees uploads as they arrive.",
    ]
    return "\n".join(lines)


def _step(name: str) -> Any:
    value = EXAMPLES.get(name)
    return STEPS[name](*([] if value is None else [value]))


def refusal(steps: Sequence[Any], where: str = "up") -> str | None:
    """Why a wire of these steps is refused; None where it is not."""
    form, me = torch.zeros(SPEC.size), Sender(0, 0, 0, np.array([0]))
    try:
        archipel.Wire(up=tuple(steps))
        chain = Chain.fitted(steps, form, me, SPEC)
        if where != "up":
            check_model(chain, me, keeps=where == "peers")
    except archipel.ArchipelError as error:
        return str(error)
    return None


def _step_row(name: str, step: Any) -> list[str]:
    yes = {True: "yes", False: "no"}
    form, me = torch.zeros(SPEC.size), Sender(0, 0, 0, np.array([0]))
    chain = Chain.fitted((step,), form, me, SPEC)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(SPEC.size)).float()
    if isinstance(step, Structured):
        x = step.restrict(me, SPEC, x.dtype)(x)
    payload, _ = chain.send(me, x, chain.init())
    able = hasattr(step, "common")
    return [
        f"`{name}`",
        ", ".join(_values(type(step))),
        f"{4 * SPEC.size / size_of(payload):.1f}x",
        yes[step.unbiased],
        "with `common`" if able else yes[step.linear],
        yes[bool(leaves(chain.init()))],
        yes[refusal((step,), "down") is None],
        yes[refusal((step,), "peers") is None],
    ]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    line = "|" + "---|" * len(header)
    return [f"| {' | '.join(header)} |", line, *(f"| {' | '.join(row)} |" for row in rows)]


def _values(cls: type) -> list[str]:
    return [
        f.name if f.default is dataclasses.MISSING else f"{f.name} = {f.default}"
        for f in dataclasses.fields(cls)
    ]


def main(to: Path) -> None:
    for name, text in pages().items():
        (to / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(HERE)
