# SPDX-License-Identifier: Apache-2.0
"""The study file that `archipel new` writes: every key, commented out where it has its default."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tomli_w

from archipel.exchange.boxes import is_peer
from archipel.study import fields, plugins
from archipel.study.sections import SECTIONS

_ABOUT = {
    "study": "what, why and how long",
    "data": "whose data; 'archipel list data', 'archipel data NAME'",
    "model": "the network; 'archipel list models'. Without a name it is the task's own",
    "algorithm": "'archipel list algorithms'; 'archipel show NAME' prints its source",
    "round": "who is asked, and what happens when too few answer",
    "wire": "what happens to an upload on its way",
    "privacy": "what is promised to the parties",
    "adversary": "parties that attack the model, in a simulation; 'archipel list attacks'",
    "topology": "who talks to whom, for algorithms without a server",
    "simulate": "what goes wrong in a simulation",
}


def template(given: Mapping[str, Mapping[str, Any]], schema: str | None = None) -> str:
    """Return the text of a study of these tables, with every other key as a comment."""
    algorithm: Any = plugins.find("algorithm", given["algorithm"]["name"])
    learns = bool(getattr(algorithm, "learns_graph", False))  # a property of the class, too
    if is_peer(algorithm):
        given = {"topology": {"learned": True} if learns else {"name": "ring"}, **given}
    if "head" in fields.hints(algorithm):  # a part of the model: it must have more than one layer
        given = {**given, "model": {"name": "mlp", **given.get("model", {})}}
    lines = [f"#:schema ./{schema}", ""] if schema else []
    lines += ["# A study. Lines with a # show what holds without them.", ""]
    for section, kind in SECTIONS.items():
        lines.append(f"[{section}]  # {_ABOUT[section]}")
        known = {key: (info.default, info.description) for key, info in kind.model_fields.items()}
        if section == "algorithm":
            known |= _fields_of(algorithm)
        values = given.get(section, {})
        for key, (default, comment) in known.items():
            if key in values:
                lines.append(_commented(f"{key} = {literal(values[key])}", comment))
            else:
                shown = "..." if default is None else literal(default)
                lines.append(_commented(f"# {key} = {shown}", comment))
        lines += [f"{key} = {literal(values[key])}" for key in values if key not in known]
        lines.append("")
    return "\n".join(lines)


def _fields_of(algorithm: Any) -> dict[str, tuple[Any, str]]:
    """Default and kind of each field; None where it has none that a file holds."""
    defaults = {each.name: each.default for each in dataclasses.fields(algorithm)}
    found = {}
    for name, hint in fields.hints(algorithm).items():
        held = fields.holds(hint, defaults[name])
        found[name] = (fields.write(defaults[name]) if held else None, fields.wanted(hint))
    return found


def literal(value: Any) -> str:
    """A value on one line; tomli_w spreads lists and tables over several."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()


def _key(key: str) -> str:
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")


def _commented(text: str, comment: str | None) -> str:
    if not comment:
        return text
    line = f"{text:<34}  # {comment}"
    return line if len(line) <= 110 else f"# {comment}:\n{text}"
