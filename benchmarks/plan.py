# SPDX-License-Identifier: Apache-2.0
"""What forecasts are worth: `archipel plan` of several studies, then each run, then both compared.

Every command is a process of its own, in a folder that is gone afterwards. Bytes have to be what
was counted, to the last one, unless codes vary in length; times and memory have to be in the
interval that was printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tomli_w

from processes import describe

ARCHIPEL = str(Path(sys.executable).parent / "archipel")
RESULTS = Path(__file__).parent / "results"
STUDIES: dict[str, dict[str, Any]] = {
    "heart disease, SCAFFOLD": {
        "study": {"rounds": 300},
        "data": {"name": "heart_disease"},
        "algorithm": {"name": "scaffold", "lr": 0.03},
        "simulate": {"away": {"va": "6-10"}},
    },
    "MNIST, convolutions": {
        "study": {"rounds": 16, "evaluate_every": 4},
        "data": {"name": "mnist", "partition": "shards:2", "parties": 100},
        "model": {"name": "cnn"},
        "algorithm": {"name": "fedavg", "local_epochs": 1, "batch_size": 32},
        "round": {"sample": 5},
    },
    "FEMNIST, parties of unequal size": {
        "study": {"rounds": 60, "evaluate_every": 10},
        "data": {"name": "femnist"},
        "model": {"name": "mlp"},
        "algorithm": {"name": "fedavg", "local_epochs": 1},
        "round": {"sample": 20, "over_select": 0.3, "quorum": 10},
        "simulate": {"dropouts": 0.1, "stragglers": 0.1},
    },
    "MNIST, models of parties' own": {
        "study": {"rounds": 40, "evaluate_every": 10},
        "data": {"name": "mnist", "partition": "shards:2", "parties": 100},
        "model": {"name": "logistic"},
        "algorithm": {"name": "ditto"},
        "round": {"sample": 0.1},
    },
    "MNIST, top_k on the wire": {
        "study": {"rounds": 60, "evaluate_every": 10},
        "data": {"name": "mnist", "partition": "shards:2", "parties": 100},
        "model": {"name": "2nn"},
        "algorithm": {"name": "fedavg", "local_epochs": 1},
        "round": {"sample": 0.1},
        "wire": {"up": ["top_k:0.05"]},
    },
    "MNIST, codes of varying length": {
        "study": {"rounds": 40, "evaluate_every": 10},
        "data": {"name": "mnist", "partition": "shards:2", "parties": 100},
        "model": {"name": "logistic"},
        "algorithm": {"name": "fedavg", "local_epochs": 1},
        "round": {"sample": 0.1},
        "wire": {"up": ["quantise:4", "entropy"]},
    },
    "moons, peers on a ring": {
        "study": {"rounds": 300, "evaluate_every": 20},
        "data": {"name": "moons"},
        "algorithm": {"name": "dsgd"},
        "topology": {"name": "ring"},
        "simulate": {"dropouts": 0.1},
    },
}
SHOWN = {"time.loop": "s", "memory.peak": "MB", "bytes.up": "kB", "bytes.down": "kB"}
UNIT = {"s": 1.0, "MB": 1e6, "kB": 1e3}


def called(folder: str, *arguments: str) -> tuple[Any, float]:
    """What a command told, and the seconds it took."""
    began = time.perf_counter()
    done = subprocess.run(
        [ARCHIPEL, *arguments, "--json"], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
    return json.loads(done.stdout), time.perf_counter() - began


def measure(tables: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Forecast a study, run it, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "study.toml").write_text(tomli_w.dumps(tables))
        plan, planning = called(folder, "plan", "study.toml", "--seconds", str(seconds))
        _, wall = called(folder, "run", "study.toml")
        check, _ = called(folder, "plan", "last")
    figures = check["figures"]
    total = plan["figures"]["time.total"]
    figures["time.total"] = {
        **total, "actual": wall, "holds": total["low"] <= wall <= total["high"]
    }  # fmt: skip
    return {"planning": planning, "measured": plan["measured"], "figures": figures}


def cell(figure: dict[str, Any], unit: str) -> str:
    """A figure, its interval and what happened."""
    value, low, high, actual = (
        figure[name] / UNIT[unit] for name in ("value", "low", "high", "actual")
    )
    mark = "" if figure["holds"] else " **(!)**"
    told = f"{value:,.4g}" if figure["exact"] else f"{value:,.3g} ({low:,.3g}-{high:,.3g})"
    return f"{told} / {actual:,.4g}{mark}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of measuring, for each")
    parser.add_argument("--rounds", type=int, help="of each study, to try it out: writes nothing")
    parser.add_argument("studies", nargs="*", help="words in the names of those to do; all")
    options = parser.parse_args()
    results = {}
    for name, tables in STUDIES.items():
        if options.studies and not any(word in name for word in options.studies):
            continue
        if options.rounds is not None:
            tables = {**tables, "study": {**tables["study"], "rounds": options.rounds}}
        results[name] = measure(tables, options.seconds)
        print(f"{name}: {json.dumps(results[name]['figures']['time.loop'])}", file=sys.stderr)
    shown = {"time.total": "s", **SHOWN}
    kept = [f["holds"] for r in results.values() for n, f in r["figures"].items() if n in shown]
    lines = [
        "# What forecasts are worth",
        "",
        f"`python benchmarks/plan.py --seconds {options.seconds:g}`: `archipel plan` of each "
        "study, then `archipel run`,",
        "each a process of its own. Forecast (interval) / what happened; without an interval it is "
        "meant to be exact.",
        f"{sum(kept)} of {len(kept)} figures are as forecast. Machine: "
        f"{', '.join(map(str, describe().values()))}.",
        "",
        "| study | measured, of rounds | all of it, s | rounds, evaluations, checkpoints, s "
        "| memory, MB | up, kB | down, kB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, r in results.items():
        figures = r["figures"]
        cells = [
            cell(figures[each], unit) if each in figures else "" for each, unit in shown.items()
        ]
        rounds = STUDIES[name]["study"]["rounds"]
        lines.append(f"| {name} | {r['measured']['rounds']} of {rounds} | {' | '.join(cells)} |")
    text = "\n".join(lines) + "\n"
    if not options.studies and options.rounds is None:
        (RESULTS / "plan.md").write_text(text)
        (RESULTS / "plan.json").write_text(
            json.dumps({"machine": describe(), "studies": results}, indent=1) + "\n"
        )
    print(text)


if __name__ == "__main__":
    main()
