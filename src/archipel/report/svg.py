# SPDX-License-Identifier: Apache-2.0
"""A figure as SVG inside a page: its ink and colours are the page's, in light and in dark."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib.figure import Figure

from archipel import picture
from archipel.report import style
from archipel.report.figures import encode

# a figure's colours, and the names they have in report.css
COLOURS = {
    style.INK: "currentColor",
    style.RULE: "var(--rule)",
    style.BLUE: "var(--blue)",
    style.ORANGE: "var(--orange)",
    style.GREY: "var(--grey)",
    style.GREEN: "var(--green)",
    style.AMBER: "var(--amber)",
    style.PINK: "var(--pink)",
    style.SKY: "var(--sky)",
    picture.INK: "currentColor",
    picture.PALE: "var(--rule)",
    picture.SEA: "var(--blue)",
    picture.CORAL: "var(--green)",
    "#a9bccb": "var(--sky)",
    "#000000": "currentColor",
    "#ffffff": "var(--paper)",
}


_LONG = re.compile(r"(\d\.\d\d)\d+")  # hundredths of a point are enough
_HEX = re.compile(r"#[0-9a-f]{6}\b")
_FONT = re.compile(r"font-family: [^;]*;? ?")  # the page's instead


def inline(figure: Figure, name: str, alternative: str) -> Markup:
    """Return an <svg> element with ids of its own and a text for those who cannot see it."""
    drawn = ElementTree.fromstring(encode(figure, "svg"))
    for parent in (drawn, *drawn.findall("{*}defs")):
        for child in (*parent.findall("{*}metadata"), *parent.findall("{*}style")):
            parent.remove(child)  # who drew it, and a rule that would hold for the whole page
    for element in drawn.iter():
        element.tag = element.tag.split("}")[-1]
        element.attrib = {key: _value(key, value, name) for key, value in element.items()}
        href = element.attrib.pop("{http://www.w3.org/1999/xlink}href", None)
        if href is not None:
            element.set("href", f"#{name}-{href[1:]}")
    drawn.attrib = {
        "viewBox": drawn.attrib["viewBox"],
        "role": "img",
        "aria-label": alternative,
    }
    return Markup(ElementTree.tostring(drawn, encoding="unicode"))


def _value(key: str, value: str, name: str) -> str:
    """An attribute as the page wants it."""
    if key == "id":
        return f"{name}-{value}"
    if key == "clip-path":
        return value.replace("url(#", f"url(#{name}-")
    if key == "style":
        return _HEX.sub(lambda match: COLOURS.get(match[0], match[0]), _FONT.sub("", value))
    if key == "d":
        return _LONG.sub(r"\1", value.replace("\n", ""))
    return value if key.startswith("{") else _LONG.sub(r"\1", value)
