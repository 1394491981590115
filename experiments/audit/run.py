# SPDX-License-Identifier: Apache-2.0
"""What attacks do to studies that defend nothing, and to those that do.

Each part is `archipel audit` on a study; see README.md for the commands.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from reporting import BLUE, GREEN, GREY, INK, ORANGE, gates, show, table  # noqa: E402

from archipel.audit import auditing, work  # noqa: E402
from archipel.audit.auditing import audit  # noqa: E402
from archipel.audit.findings import Audit, Picture  # noqa: E402
from archipel.demo import STUDY as DEMO  # noqa: E402
from archipel.study.file import Study  # noqa: E402

DIGITS = """
[study]
name = "digits"
rounds = 1
[data]
name = "mnist"
parties = 20
partition = "iid"
[model]
name = "{model}"
[algorithm]
name = "fedsgd"
lr = 0.1
batch_size = {batch}
"""
STEPS = DIGITS.replace('"fedsgd"', '"fedavg"\nlocal_steps = {steps}')
OVERFITTED = """
[study]
name = "overfitted"
rounds = 20
[data]
name = "heart_disease"
[model]
name = "mlp"
widths = [256]
[algorithm]
name = "fedavg"
lr = 0.3
local_epochs = 8
batch_size = 8
"""
TABLES = """
[study]
name = "tables"
rounds = 1
[data]
name = "heart_disease"
partition = "iid"
parties = 4
[model]
name = "mlp"
widths = [256]
[algorithm]
name = "fedsgd"
lr = 0.1
"""
SECURE = '[wire]\nsum = "secure"\n'
RECORD = '[privacy]\nunit = "record"\nepsilon = {}\ndelta = 1e-4\nclip = 1.0\n'
PARTY = '[privacy]\nunit = "party"\ntrust = "nobody"\nepsilon = {}\ndelta = 1e-2\nclip = 1.0\n'


def audited(text: str, *attacks: str, quick: bool = False) -> Audit:
    """The audit of a study's text, by these attacks."""
    base = Study.parse(text.replace('"nets.py', f'"{HERE}/nets.py'))
    return audit(base, attacks=attacks, quick=quick, say=lambda said: None)


def by_who(found: Audit) -> dict[str, dict[str, dict[str, Any]]]:
    """All findings as JSON, by adversary and attack."""
    return {
        each.adversary.who: {finding.name: finding.to_json() for finding in each.findings}
        for each in found.learnt
    }


# -- parts -----------------------------------------------------------------------------------------


def exact() -> dict[str, Any]:
    """A dense first layer: one record, and the same study with its defences."""
    one = DIGITS.format(model="2nn", batch=1)
    whole = DIGITS.format(model="2nn", batch=1).replace("batch_size = 1\n", "")
    plain = audited(one, "exact")
    keep(plain.pictures, "exact.png")
    return {
        "plain": by_who(plain),
        "secure": by_who(audited(whole + SECURE, "exact", "cosine", "dlg")),
        "secure, one record each": by_who(audited(one + SECURE, "exact")),
        "noise by record, ε = 8": by_who(audited(one + RECORD.format(8), "exact")),
    }


def dlg() -> dict[str, Any]:
    """Deep leakage from gradients."""
    found = audited(DIGITS.format(model="nets.py:leaky", batch=1), "dlg")
    keep(found.pictures, "dlg.png")
    return {"plain": by_who(found)}


def cosine() -> dict[str, Any]:
    """A small convolution network: one record, four, and several local steps."""
    name = "nets.py:small"
    texts = {
        "1 record": DIGITS.format(model=name, batch=1),
        "4 records": DIGITS.format(model=name, batch=4),
        "4 steps, lr 0.1": STEPS.format(model=name, batch=1, steps=4),
        "4 steps, lr 0.01": STEPS.format(model=name, batch=1, steps=4).replace("0.1", "0.01"),
    }
    found = {title: audited(text, "cosine", "labels", quick=True) for title, text in texts.items()}
    for title, each in found.items():
        keep(each.pictures, f"cosine-{title.replace(',', '').replace(' ', '-')}.png")
    return {title: by_who(each) for title, each in found.items()}


def membership() -> dict[str, Any]:
    """An overfitted model, and the same with privacy by record."""
    auditing.FULL = replace(work.FULL, worlds=32)
    found = {"plain": audited(OVERFITTED, "membership", "active")}
    auditing.FULL = replace(work.FULL, worlds=6)
    for epsilon in (1, 8):
        text = OVERFITTED + RECORD.format(epsilon)
        found[f"ε = {epsilon}"] = audited(text, "membership")
    auditing.FULL = work.FULL
    keep_curves(found)
    return {title: {**by_who(each), "worlds": each.worlds} for title, each in found.items()}


def properties() -> dict[str, Any]:
    """A property of a party's records, from its upload."""
    return {
        "plain": by_who(audited(TABLES, "property")),
        "secure": by_who(audited(TABLES + SECURE, "property")),
        "noise by party, ε = 1": by_who(audited(TABLES + PARTY.format(1), "property")),
    }


def imprint() -> dict[str, Any]:
    """A malicious server's model."""
    found = audited(DIGITS.format(model="2nn", batch=32), "imprint", "exact")
    keep(found.pictures, "imprint.png")
    secure = audited(DIGITS.format(model="2nn", batch=32) + SECURE, "imprint")
    return {"plain": by_who(found), "secure": by_who(secure)}


def demo() -> dict[str, Any]:
    """The demo's four hospitals, and what it takes."""
    times = {}
    for quick in (True, False):
        began = time.perf_counter()
        found = audited(DEMO, quick=quick)
        times["quick" if quick else "full"] = time.perf_counter() - began
    return {"seconds": times, "worlds": found.worlds, "sentence": found.sentence, **by_who(found)}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "exact": exact, "dlg": dlg, "cosine": cosine, "membership": membership,
    "properties": properties, "imprint": imprint, "demo": demo,
}  # fmt: skip


# -- figures ---------------------------------------------------------------------------------------


def keep(shown: Sequence[Picture], name: str) -> None:
    """Records above what an attack made of them."""
    for picture in shown[:1]:
        count = min(6, len(picture.true))
        figure = Figure(figsize=(1.5 * count, 3.3), layout="constrained")
        axes = figure.subplots(2, count, squeeze=False)
        for i in range(count):
            for row, tensor in enumerate((picture.true[i], picture.made[i])):
                image = tensor.reshape(tensor.shape[-2:]).clamp(0, 1)
                axes[row, i].imshow(image, cmap="gray", vmin=0, vmax=1)
                axes[row, i].set_axis_off()
            axes[1, i].set_title(f"{picture.peak[i]:.0f} dB")
        figure.savefig(HERE / name, dpi=110)


def keep_curves(found: dict[str, Audit]) -> None:
    """True by false positives on logarithmic axes."""
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    axes = figure.subplots()
    at = torch.logspace(-3, 0, 200).tolist()
    for (title, each), colour in zip(found.items(), (ORANGE, BLUE, GREEN), strict=False):
        for name, style in (
            ("rounds, from the uploads", "-"),
            ("lira, from the final model", "--"),
        ):
            curve = each.curves[name]
            label = f"{title}: {name}"
            axes.plot(at, [max(curve.at(f), 1e-4) for f in at], style, color=colour, label=label)
        if each.epsilon is not None and each.epsilon < 4:
            top = [min(1.0, 2.718281828**each.epsilon * f + (each.delta or 0)) for f in at]
            axes.plot(at, top, color=INK, lw=1, label=f"ceiling of ε = {each.epsilon:.2g}")
    axes.plot(at, at, ":", color=GREY, label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(1e-3, 1), ylim=(1e-3, 1.05))
    axes.set(xlabel="false positives", ylabel="true positives")
    axes.legend(fontsize=8)
    figure.savefig(HERE / "roc.png", dpi=130)


# -- tables ----------------------------------------------------------------------------------------


def checks(kept: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """What must hold, what was measured, whether it holds."""
    found: list[tuple[str, str, bool]] = []

    def check(part: str, what: str, measured: Callable[[Any], tuple[str, bool]]) -> None:
        if part in kept:
            said, holds = measured(kept[part])
            found.append((what, said, holds))

    def least(value: float, form: str, most: float) -> tuple[str, bool]:
        return form.format(value), value >= most

    check(
        "exact",
        "dense layer, one record: PSNR > 60 dB",
        lambda r: least(r["plain"]["server"]["exact"]["psnr_median"], "{:.0f} dB, median", 60),
    )
    check(
        "exact",
        "a secure sum of whole tables leaves nothing",
        lambda r: _none(r["secure"]["server"]["exact"]),
    )
    check(
        "exact",
        "noise by record, ε = 8, leaves nothing",
        lambda r: _none(r["noise by record, ε = 8"]["server"]["exact"]),
    )
    check(
        "dlg",
        "DLG on MNIST: MSE < 1e-3 (PSNR > 30 dB)",
        lambda r: least(r["plain"]["server"]["dlg"]["psnr_median"], "{:.0f} dB, median", 30),
    )
    check(
        "membership",
        "LiRA at 1 % false positives: 3 times guessing or more, by its whole interval",
        lambda r: _above(r["plain"]["public"]["lira"], 0.03),
    )
    check(
        "membership",
        "a party that raises losses: better than guessing, by its whole interval",
        lambda r: _above(r["plain"]["malicious_party"]["active"], 0.01),
    )
    for epsilon in (1, 8):
        check(
            "membership",
            f"ε = {epsilon}: every attack under its ceiling",
            lambda r, e=epsilon: _under(r[f"ε = {e}"]),
        )
    check(
        "properties",
        "a property of a party: AUC >= 0.8",
        lambda r: least(r["plain"]["server"]["properties"]["score"], "{:.2f}", 0.8),
    )
    check(
        "properties",
        "noise by party, ε = 1: under its ceiling",
        lambda r: _under(r["noise by party, ε = 1"]),
    )
    check(
        "imprint",
        "an imprint reads more of 32 records than the gradient shows by itself",
        lambda r: _more(r["plain"]["malicious_server"]),
    )
    check(
        "demo",
        "the demo, quick: under a minute",
        lambda r: (f"{r['seconds']['quick']:.0f} s", r["seconds"]["quick"] < 60),
    )
    check(
        "demo",
        "the demo, in full: under ten minutes",
        lambda r: (f"{r['seconds']['full']:.0f} s", r["seconds"]["full"] < 600),
    )
    return found  # fmt: skip


def _none(finding: dict[str, Any]) -> tuple[str, bool]:
    low, high = finding["interval"]
    return f"{finding['score']:.1%} found, at most {high:.1%}", low <= finding["chance"]


def _under(found: dict[str, Any]) -> tuple[str, bool]:
    rows = [
        each
        for who in found.values()
        if isinstance(who, dict)
        for each in who.values()
        if each["ceiling"] is not None
    ]
    best = max(rows, key=lambda each: each["score"])
    said = f"{best['score']:.1%} at most, where {best['ceiling']:.1%} is the ceiling"
    return said, all(each["within"] for each in rows)


def _above(finding: dict[str, Any], least: float) -> tuple[str, bool]:
    low, high = finding["interval"]
    return f"{finding['score']:.1%}, {low:.1%} to {high:.1%}", low >= least


def _more(found: dict[str, Any]) -> tuple[str, bool]:
    ours, theirs = found["imprint"]["score"], found["exact"]["score"]
    return f"{ours:.0%}, against {theirs:.0%}", ours > theirs


def rows(kept: dict[str, Any]) -> list[Sequence[object]]:
    """Every attack of the parts, as the server and sums have it."""
    found: list[Sequence[object]] = []
    for part, cases in kept.items():
        for case, people in cases.items() if part != "demo" else [("demo", cases)]:
            for who in ("server", "sums", "malicious_server", "malicious_party", "public"):
                for name, each in (people.get(who) or {}).items():
                    acts = name in ("imprint", "active")
                    acts |= who == "malicious_party" and part == "membership"
                    if each["score"] is None or (who.startswith("malicious") and not acts):
                        continue
                    found.append(_row(part, case, who, name, each))
    return found


def _row(part: str, case: str, who: str, name: str, each: dict[str, Any]) -> Sequence[object]:
    low, high = each["interval"]
    ceiling = "" if each["ceiling"] is None else f"{each['ceiling']:.1%}"
    peak = each.get("psnr_median")
    shown = "" if peak is None or part in ("properties", "demo") else f"{peak:.0f} dB"
    score, chance = f"{each['score']:.1%}", f"{each['chance']:.1%}"
    return part, case, who, name, score, f"{low:.1%} to {high:.1%}", chance, ceiling, shown


def main() -> None:
    """Run parts, or make tables anew of what is kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="of the experiment")
    wanted = parser.parse_args().parts
    path = HERE / "results.json"
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in wanted:
        began = time.perf_counter()
        kept[name] = PARTS[name]()
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
        path.write_text(json.dumps(kept, indent=1) + "\n")
    kept = {name: kept[name] for name in PARTS if name in kept}
    header = ["part", "study", "adversary", "attack", "score", "95 %", "guessing", "ceiling",
              "PSNR, median"]  # fmt: skip
    show(HERE, f"{gates(checks(kept))}\n\n{table(header, rows(kept))}", {})


if __name__ == "__main__":
    main()
