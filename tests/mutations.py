"""Study files with something wrong in them: a seeded stream of mutations."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import NamedTuple

from archipel.study.sections import SECTIONS

VALUES = [  # of every TOML kind, and on the edge of each
    "-1", "0", "1", "3", "2147483648", "9223372036854775807", "-9223372036854775808",
    "9223372036854775808", "18446744073709551616", "1" + "0" * 400, "-0.0", "0.5", "1.5", "-2.5",
    "1e-320", "1e308", "-1e308", "nan", "-nan", "inf", "-inf", "true", "false", '""', '"none"',
    '" "', '"0.1"', '"naïve"', '"東京 🏝"', '"a\\nb"', '"\\u0000"', '"\\u001b[31mred"', '"[red]"',
    '"../../etc"', '"/"', '"."', '"mine.py"', '"no.py:Nothing"', '"~/x.py"', "'''a\nb'''",
    '"' + "x" * 5000 + '"', '"day:24"', '"day:0"', '"ring"', '"adam"', '"11-20"', '"5-1"',
    "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "[]", "[1, 2]", '["a", "b"]', "[[1], [[2]]]",
    "[1, 'a', {b = 2}]", "[nan]", "[" * 60 + "]" * 60, "{}", "{a = 1}", '{name = "adam"}',
    "{name = 1}", '{name = "decay", start = "x"}', '{name = "cosine", start = 0.1, rounds = 0}',
    '{name = "inverse", start = 0.1, half = 0}', '{name = "decay", start = 0.1, every = 0}',
    '{name = "adam", beta1 = nan}', '{name = "sgd", momentun = 0.9}', "{a = {b = {c = [1, {}]}}}",
]  # fmt: skip
_CHARACTERS = "abz019 =[]{}\"'#.,:-_\\\n\t\0\x7fé🏝"
_SETTING = re.compile(r"^(\s*)([\w.\"-]+)(\s*=\s*)(.*?)(\s*#[^\"']*)?$")


class Mutant(NamedTuple):
    """A changed file, and the words of which an error must hold one; none: any key, any line."""

    how: str
    text: str
    about: tuple[str, ...] = ()


def mutants(bases: list[str], count: int, seed: int) -> Iterator[Mutant]:
    """So many mutations of the files in turn, some of them of mutations."""
    draw = random.Random(seed)
    for k in range(count):
        mutant = draw.choice(_MUTATIONS)(bases[k % len(bases)], draw)
        if draw.random() < 0.15:
            again = draw.choice(_MUTATIONS)(mutant.text, draw)
            mutant = Mutant(f"{mutant.how}, {again.how}", again.text)
        yield mutant


def settings(text: str) -> list[tuple[int, str, str]]:
    """Line, section and key of every setting that fills one line."""
    found, section = [], ""
    for at, line in enumerate(text.split("\n")):
        if header := re.match(r"^\[([\w.]+)\]", line):
            section = header[1]
        elif (match := _SETTING.match(line)) and not line.startswith("#"):
            found.append((at, section, match[2]))
    return found


def put(text: str, at: int, value: str) -> str:
    """The file with another value on that line."""
    lines = text.split("\n")
    match = _SETTING.match(lines[at])
    assert match is not None
    lines[at] = f"{match[1]}{match[2]}{match[3]}{value}"
    return "\n".join(lines)


def _value(text: str, draw: random.Random) -> Mutant:
    found = settings(text)
    if not found:
        return Mutant("nothing", text)
    at, section, key = draw.choice(found)
    value = draw.choice(VALUES)
    return Mutant(f"{section}.{key} = {value[:40]}", put(text, at, value), (section, key))


def _misspell(text: str, draw: random.Random) -> Mutant:
    found = settings(text)
    if not found:
        return Mutant("nothing", text)
    at, section, key = draw.choice(found)
    lines = text.split("\n")
    wrong = _mistyped(key.strip('"'), draw)
    lines[at] = lines[at].replace(key, wrong, 1)
    return Mutant(f"{section}.{key} as {wrong}", "\n".join(lines), (section, wrong, key))


def _mistyped(word: str, draw: random.Random) -> str:
    at = draw.randrange(len(word))
    return draw.choice(
        [
            word[:at] + word[at + 1 :] + "x",
            word[:at] + draw.choice("aeiou_z") + word[at:],
            word.upper() if word != word.upper() else word.lower(),
            word[::-1] + "q",
            "lr",
        ]
    )


def _section(text: str, draw: random.Random) -> Mutant:
    headers = list(re.finditer(r"^\[([\w.]+)\].*$", text, re.MULTILINE))
    if not headers:
        return Mutant("nothing", text)
    chosen = draw.choice(headers)
    name = chosen[1]
    following = [each.start() for each in headers if each.start() > chosen.start()]
    end = following[0] if following else len(text)
    before, block, after = text[: chosen.start()], text[chosen.start() : end], text[end:]
    wrong = _mistyped(name, draw)
    how, changed = draw.choice(
        [
            ("dropped", before + after),
            ("twice", before + block + block + after),
            ("misspelt", before + block.replace(name, wrong, 1) + after),
            ("a value", f"{name} = {draw.choice(VALUES)}\n" + before + after),
            ("a list", before + block.replace(chosen[0], f"[[{name}]]", 1) + after),
            ("nested", before + block.replace(chosen[0], f"[{name}.{name}]", 1) + after),
            ("empty", before + f"[{name}]\n" + after),
            ("new", before + f"[{wrong}]\na = 1\n" + block + after),
            ("last", before + after + "\n" + block),
        ]
    )
    return Mutant(f"[{name}] {how}", changed)


def _added(text: str, draw: random.Random) -> Mutant:
    """A key of another section, or of none."""
    section = draw.choice(list(SECTIONS))
    keys = [key for kind in SECTIONS.values() for key in kind.model_fields]
    key = draw.choice([*keys, "lr", "hidden", "klients", "été", "a.b.c", '"a\\nb"', '""'])
    line = f"{key} = {draw.choice(VALUES)}"
    if f"[{section}]" in text:
        changed = re.sub(rf"^\[{section}\].*$", lambda m: f"{m[0]}\n{line}", text, flags=re.M)
    else:
        changed = f"{text}\n[{section}]\n{line}\n"
    return Mutant(f"{section}: {line[:40]}", changed)


def _bytes(text: str, draw: random.Random) -> Mutant:
    at = draw.randrange(len(text)) if text else 0
    end = min(len(text), at + draw.choice([1, 1, 1, 2, 5, 40]))
    how, middle = draw.choice(
        [
            ("flipped", draw.choice(_CHARACTERS)),
            ("deleted", ""),
            ("twice", text[at:end] * 2),
            ("inserted", draw.choice(_CHARACTERS) + text[at:end]),
            ("cut off", None),
        ]
    )
    changed = text[:at] if middle is None else text[:at] + middle + text[end:]
    return Mutant(f"bytes {at} to {end} {how}", changed)


def _lines(text: str, draw: random.Random) -> Mutant:
    lines = text.split("\n")
    i, j = (draw.randrange(len(lines)) for _ in range(2))
    if draw.random() < 0.5:
        lines[i], lines[j] = lines[j], lines[i]
        return Mutant(f"lines {i} and {j} swapped", "\n".join(lines))
    lines.insert(j, lines[i])
    return Mutant(f"line {i} again", "\n".join(lines))


_MUTATIONS = [_value, _value, _value, _value, _misspell, _section, _added, _bytes, _lines]
