# SPDX-License-Identifier: Apache-2.0
"""The model card: what a bundle's model is for, was made of, and is not, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from archipel.bundle.manifest import ColumnPart, Manifest
from archipel.errors import clean

if TYPE_CHECKING:
    from archipel.bundle.writing import Source

_TASKS = {
    "classification": "a class, and the probability of each",
    "regression": "a number",
    "survival": "a log-risk: the higher it is, the earlier the event; no probability, and only the "
    "order and differences of log-risks mean anything",
    "text": "the next character",
}


def card(about: Manifest, source: Source) -> str:
    """The page, in Markdown."""
    sections = {
        "What it is for": [about.study.purpose or "The study does not say."],
        "What it predicts": _predicts(about),
        "What it takes": _takes(about),
        "What it was trained on": _data(source),
        "How": _how(about, source),
        "How well": _how_well(about),
        "Privacy": _privacy(source),
        "What it is not for": _limits(about),
    }
    lines = [f"# {_line(about.study.name)}: model card"]
    for title, said in sections.items():
        lines += ["", f"## {title}", "", *map(_line, said)]
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    return clean(" ".join(text.split()) if "\n" in text else text)


def _predicts(about: Manifest) -> list[str]:
    targets = [column.name for column in about.features.targets or ()]
    said = f"{', '.join(targets)}: {_TASKS[about.task]}." if targets else f"{_TASKS[about.task]}."
    said = said[:1].upper() + said[1:] if not targets else said
    if not about.classes:
        return [said]
    return [said, "", f"Classes: {_some([str(label) for label in about.labels])}."]


def _takes(about: Manifest) -> list[str]:
    features = about.features
    if features.columns is None:
        shape = " x ".join(map(str, about.network.shape))
        return [f"An array of numbers, {shape} a row{_scaled(about)}."]
    empty = {
        "error": "Empty cells are refused, as in training.",
        "drop": "Rows with empty cells were left out in training, and are refused.",
        "mean": "Empty cells get the mean of the training rows.",
    }
    return [
        f"A table with these columns, in any order{_scaled(about)}.",
        "",
        *(f"- {_kind(column)}" for column in features.columns),
        "",
        empty[features.missing],
    ]


def _kind(column: ColumnPart) -> str:
    if not column.values:
        return f"`{column.name}`: number"
    return f"`{column.name}`: one of {_some([str(value) for value in column.values])}"


def _scaled(about: Manifest) -> str:
    features, said = about.features, ""
    if features.mean:
        said = "; features are moved and divided by the mean and scale in bundle.json"
    if features.target_mean is not None:
        said += "; what the network gives is turned back by the target's, there too"
    return said


def _some(names: list[str]) -> str:
    return ", ".join(names[:50]) + (f" and {len(names) - 50} more" if len(names) > 50 else "")


def _data(source: Source) -> list[str]:
    about = source.data.about
    told = {
        "Data": about.name,
        "Who": source.trained,
        "Source": about.source,
        "Licence": about.licence or "not known",
        "Cite": about.citation,
        "Note": about.note,
    }
    return [f"- {name}: {value}" for name, value in told.items() if value]


def _how(about: Manifest, source: Source) -> list[str]:
    weights = source.model.p
    told = {
        "Algorithm": f"{about.study.algorithm}, {about.study.rounds} rounds, seed "
        f"{source.study.study.seed}",
        "Network": f"{about.network.name}, {weights:,} weights",
        "Model": about.model,
        "BatchNorm's statistics": about.statistics,
        "Study": f"`{about.study.hash}` (study.toml)",
        "Made": f"{about.made} with Archipel {about.archipel}",
    }
    return [f"- {name}: {value}" for name, value in told.items() if value]


def _how_well(about: Manifest) -> list[str]:
    if not about.metrics and not about.reported:
        return ["Nothing was measured: there was no test point."]
    said = [f"Measured on {about.measured}.", "", *_metrics(about.metrics or about.reported)]
    if about.metrics and _differ(about.metrics, about.reported):
        said += ["", "The run reported other values, of the models that parties use:", ""]
        said += _metrics(about.reported)
    return said


def _metrics(found: dict[str, float | None]) -> list[str]:
    return [f"- {name}: {'none' if v is None else f'{v:.6g}'}" for name, v in found.items()]


def _differ(some: dict[str, float | None], others: dict[str, float | None]) -> bool:
    return any(
        not math.isclose(some.get(name) or 0.0, value or 0.0, rel_tol=1e-5, abs_tol=1e-6)
        for name, value in others.items()
    )


def _privacy(source: Source) -> list[str]:
    return [
        f"{source.together} {_promised(source)} bundle.json "
        "holds names of columns, their categories, and where features are scaled or filled in "
        "the mean and scale of each over the training rows.",
    ]


def _promised(source: Source) -> str:
    """What is claimed of what the model gives away."""
    promise = source.study.promise
    if promise is None or source.party is not None:
        return (
            "No noise was added and no bound on what the model gives away is claimed: whoever has "
            "it may learn something of the rows it was trained on."
        )
    much = f"ε = {promise.epsilon:g}" if promise.epsilon else f"noise {promise.noise:g}"
    if not source.data.about.elsewhere:
        return (
            f"It was trained with the noise of privacy by {promise.unit} ({much}, δ = "
            f"{promise.delta:g}), drawn from the study's seed as in every simulation: this model "
            "itself protects nobody, and whoever has it may learn something of the rows."
        )
    return (
        f"It was trained with privacy by {promise.unit}, {much} and δ = {promise.delta:g}: noise "
        "bounds what it gives away of each. Metrics and the scale of features are not covered."
    )


def _limits(about: Manifest) -> list[str]:
    return [
        f"- Rows unlike those it was trained on: it was measured on {about.measured or 'none'}.",
        "- A decision about a person without somebody who answers for it; it is no medical device.",
        "- Questions of cause and effect.",
    ]
