# SPDX-License-Identifier: Apache-2.0
"""What a verifiable mean costs: a party's work, everybody's check of everything, and bytes.

1,000 parties with values of 16 bits, each picking 20 neighbours, at ε = 1 and δ = 1e-5 with half of
them honest: the whole protocol with its real cryptography, on one core. Then `verify` on the file,
on one core, as `archipel verify` does it, and again with one party that cheats. Last, the vector
commitment with a bounded norm for models, by its size.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections import defaultdict
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from archipel.federation.certificates import Identity
from archipel.verifiable import norm
from archipel.verifiable.bulletin import Board, Entry
from archipel.verifiable.equations import hold
from archipel.verifiable.following import PHASES, Run
from archipel.verifiable.party import Party
from archipel.verifiable.protocol import answers
from archipel.verifiable.terms import agreed
from archipel.verifiable.transcript import Transcript
from archipel.verifiable.verification import verify

RESULTS = Path(__file__).parent / "results"


class Timed:
    """Seconds and bytes of every party, by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.bytes: dict[str, list[int]] = defaultdict(list)

    def of(self, party: Party, run: Run) -> list[Entry]:
        start = time.process_time()
        said = answers(party, run)
        self.seconds[run.phase].append(time.process_time() - start)
        self.bytes[run.phase].append(sum(len(each.line) for each in said))
        return said


class Liar(Party):
    """Adds one step to the noise that the coins make."""

    def _noise(self, run: Run) -> list[int]:
        return [each + 1 for each in super()._noise(run)]


def held(parties: int, neighbours: int, bits: int, path: Path, liar: bool) -> dict[str, Any]:
    """One run, and the check of it."""
    draw = Random(0)
    kinds = [Liar if liar and i == parties // 2 else Party for i in range(parties)]
    everybody = [kind(f"party {i}", (draw.random(),)) for i, kind in enumerate(kinds)]
    roster = {party.name: party.identity.public.hex() for party in everybody}
    terms = agreed(roster, "00", bits=bits, neighbours=neighbours, honest=0.5)
    board, timed = Board(Identity.create(), path), Timed()
    board.announce("run", terms=terms.written(), keeper=board.keeper.public.hex())
    run = Run.begin(board.entries[-1], board.lines[-1], {})
    for phase in PHASES:
        if phase != "join":
            board.announce("phase", phase=phase)
            run.take(board.entries[-1], board.lines[-1])
        for said in [said for party in everybody for said in timed.of(party, run)]:
            board.add(said)
            run.take(board.entries[-1], board.lines[-1])
    board.announce("end")
    board.close()
    wall, cpu = time.perf_counter(), time.process_time()
    verdict = verify(path)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    (outcome,) = verdict.outcomes
    assert verdict.right is not liar
    per_party = [sum(each) for each in zip(*(timed.seconds[p] for p in PHASES), strict=True)]
    return {
        "parties": parties,
        "neighbours": neighbours,
        "bits": bits,
        "noise": terms.noise._asdict(),
        "noise_bits": len(terms.noise.weights),
        "mean_error": abs(outcome.mean[0] - statistics.mean(p.values[0] for p in everybody))
        if outcome.mean is not None
        else None,
        "deviation": outcome.deviation,
        "epsilon": outcome.epsilon,
        "delta": outcome.delta,
        "party_seconds": {
            "median": statistics.median(per_party),
            "most": max(per_party),
            **{phase: statistics.median(timed.seconds[phase]) for phase in PHASES},
        },
        "party_bytes": {phase: statistics.mean(timed.bytes[phase]) for phase in PHASES},
        "bulletin_bytes": path.stat().st_size,
        "verify_seconds": {"wall": wall, "cpu": cpu},
        "named": [fault._asdict() for fault in outcome.faults],
    }


def norms() -> list[dict[str, Any]]:
    """A vector commitment with a bounded norm, by parameters."""
    bound = 1 << 15
    bounded(4096, bound)  # makes all generators, which are kept
    return [bounded(size, bound) for size in (256, 1024, 4096)]


def bounded(size: int, bound: int) -> dict[str, Any]:
    """Seconds of one core."""
    draw = Random(size)
    values = [draw.randrange(-bound, bound) // size for _ in range(size)]
    start = time.process_time()
    vector = norm.commit(values)
    committed = time.process_time()
    proof = norm.prove(Transcript("norm", b"benchmark", "party"), vector, bound)
    proved = time.process_time()
    transcript = Transcript("norm", b"benchmark", "party")
    assert hold(norm.equations(transcript, vector.point, size, bound, proof))
    return {
        "parameters": size,
        "commit": committed - start,
        "prove": proved - committed,
        "verify": time.process_time() - proved,
        "bytes": len(proof.encoded),
    }


def told(found: dict[str, Any]) -> str:
    """The page of results."""
    honest, lies = found["all honest"], found["one lies"]
    seconds, size = honest["party_seconds"], honest["party_bytes"]
    first, last = found["norm"][0], found["norm"][-1]
    more = last["parameters"] - first["parameters"]
    lines = [
        f"{honest['parties']} parties, values of {honest['bits']} bits, {honest['neighbours']} "
        f"picked neighbours, ε = {honest['epsilon']:.3f} at δ = {honest['delta']:g} with half of "
        f"them honest, on {found['machine']}. Noise: {honest['noise']['coins']} coins and "
        f"{honest['noise_bits'] - honest['noise']['coins']} bits that fill up a unit, of each "
        f"party; deviation of the mean {honest['deviation'][0]:.5f}. Seconds are of one core.",
        "",
        "| | |",
        "|---|---|",
        f"| a party, all phases: median, most | {seconds['median']:.4f} s, "
        f"{seconds['most']:.4f} s |",
        *(f"| {phase} | {seconds[phase]:.4f} s, {size[phase]:.0f} bytes |" for phase in PHASES),
        f"| the bulletin | {honest['bulletin_bytes'] / 1e6:.2f} MB |",
        f"| `archipel verify` of all | {honest['verify_seconds']['cpu']:.2f} s, "
        f"{honest['verify_seconds']['wall']:.2f} s on the wall |",
        f"| with one party that lies, who is named | {lies['verify_seconds']['cpu']:.2f} s |",
        "",
        "A vector in one commitment with a proof that its norm is bounded:",
        "",
        "| parameters | commit, s | prove, s | verify, s | bytes |",
        "|---|---|---|---|---|",
        *(
            f"| {each['parameters']} | {each['commit']:.4f} | {each['prove']:.2f} | "
            f"{each['verify']:.2f} | {each['bytes']} |"
            for each in found["norm"]
        ),
        "",
        f"For each parameter more: {1e3 * (last['prove'] - first['prove']) / more:.2f} ms to "
        "prove, "
        f"{1e3 * (last['verify'] - first['verify']) / more:.3f} ms to verify.",
        "",
        "Goals: at most 1 s for each party, at most 90 s on two cores for verifying everything. "
        "Made by `python benchmarks/proofs.py --keep`.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parties", type=int, default=1000)
    parser.add_argument("--neighbours", type=int, default=20)
    parser.add_argument("--bits", type=int, default=16)
    parser.add_argument("--keep", action="store_true", help="Write results/proofs.json and .md.")
    asked = parser.parse_args()
    found: dict[str, Any] = {"machine": f"{platform.machine()}, {os.cpu_count()} cores"}
    with TemporaryDirectory() as folder:
        for liar in (False, True):
            path = Path(folder) / f"{liar}.jsonl"
            name = "one lies" if liar else "all honest"
            found[name] = held(asked.parties, asked.neighbours, asked.bits, path, liar)
            print(json.dumps(found[name], indent=1))
    found["norm"] = norms()
    print(json.dumps(found["norm"], indent=1))
    if asked.keep:
        (RESULTS / "proofs.json").write_text(json.dumps(found, indent=1) + "\n")
        (RESULTS / "proofs.md").write_text(told(found))


if __name__ == "__main__":
    main()
