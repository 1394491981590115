# SPDX-License-Identifier: Apache-2.0
"""The study file that `archipel new` writes: every key, commented out where it has its default."""

from __future__ import annotations

import dataclasses
from typing import Any

import tomli_w

from archipel import fields, plugins
from archipel.sections import SECTIONS

_ABOUT = {
    "study": "what, why and how long",
    "data": "whose data; 'archipel list data', 'archipel data NAME'",
    "model": "the network; 'archipel list models'. Without a name it is the task's own",
    "algorithm": "'archipel list algorithms'; 'archipel show NAME' prints its source",
    "round": "who is asked, and what happens when too few answer",
    "wire": "what happens to an upload on its way",
    "privacy": "what is promised to the parties",
    "topology": "who talks to whom, for algorithms without a server",
    "simulate": "what goes wrong in a simulation",
}


def template(name: str, algorithm: str, data: str, schema: str | None = None) -> str:
    """Return the text of a study that runs as it is."""
    given = {"study": {"name": name}, "data": {"name": data}, "algorithm": {"name": algorithm}}
    lines = [f"#:schema ./{schema}", ""] if schema else []
    lines += ["# A study. Lines with a # show what holds without them.", ""]
    for section, kind in SECTIONS.items():
        lines.append(f"[{section}]  # {_ABOUT[section]}")
        for key, info in kind.model_fields.items():
            value = given.get(section, {}).get(key)
            shown = _line(key, value if value is not None else info.default)
            if shown is not None:
                off = "" if value is not None else "# "
                lines.append(_commented(f"{off}{shown}", info.description))
            elif info.description:
                lines.append(_commented(f"# {key} = ...", info.description))
        if section == "algorithm":
            lines += _fields_of(algorithm)
        lines.append("")
    return "\n".join(lines)


def _fields_of(algorithm: str) -> list[str]:
    cls: Any = plugins.find("algorithm", algorithm)
    found = []
    for each in dataclasses.fields(cls):
        if each.default is not dataclasses.MISSING:
            hint = fields.wanted(fields.hints(cls)[each.name])
            found.append(_commented(f"# {_line(each.name, fields.write(each.default))}", hint))
    return found


def _line(key: str, value: Any) -> str | None:
    """One line of TOML; None for a value it cannot hold."""
    if value is None:
        return None
    if isinstance(value, dict):
        inside = ", ".join(str(_line(k, v)) for k, v in value.items())
        return f"{key} = {{{inside}}}"
    return tomli_w.dumps({key: value}).strip()


def _commented(text: str, comment: str | None) -> str:
    return f"{text:<34}  # {comment}" if comment else text
