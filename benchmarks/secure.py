# SPDX-License-Identifier: Apache-2.0
"""Secure sums: processor time of a party and of the server, beside the raw key stream and Flower.

100 parties add up 1,000,000 numbers, and ten are lost before they send theirs. All of it is run:
the sum is compared with that of the integers. "Raw" is AES-256-CTR expanding as many masks as the
party adds, or as the server takes out, and nothing else. Candidates are timed in turn, in
processor seconds of one thread, so that they are hurt alike by whatever else runs. Flower has our
degree and threshold, and for comparison those that a server needs which does not lie.

    python benchmarks/secure.py --reps 5
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from archipel.aggregation import masks
from archipel.aggregation.coding import Terms
from archipel.aggregation.neighbours import Neighbours, of_some
from archipel.aggregation.others import Simulated
from archipel.aggregation.secure import SecureSum
from archipel.core import Each
from archipel.exchange.talk import Talk
from archipel.tree import nbytes, tree_map
from peers import install
from speed import machine

RESULTS = Path(__file__).resolve().parent / "results"
PEER = Path(__file__).resolve().parent / "peers" / "peer_flwr_secure.py"
GOALS = {"party": 3.0, "server": 3.0, "flwr": 10.0, "bytes": 1.1}
WATCHED = range(10)  # parties that are timed: one may have few to mask with, by chance


class Me:
    """A party as the protocol sees it."""

    def __init__(self, number: int) -> None:
        self.number, self.round, self.others = torch.tensor([number]), 0, Simulated(number, 0)

    def secret(self, purpose: str) -> torch.Tensor:
        drawn = blake2b(purpose.encode(), key=b"%d" % int(self.number), digest_size=32).digest()
        return torch.frombuffer(bytearray(drawn), dtype=torch.uint8)


class Came:
    """What came of a message."""

    def __init__(self, said: dict[int, Any]) -> None:
        self.said, self.present = said, torch.tensor(list(said))
        self.session, self.round = Simulated(0, 0).session, 0

    def stack(self) -> Any:
        return tree_map(lambda *rows: torch.stack(rows), *self.said.values())

    def total(self) -> torch.Tensor:
        first, *rest = self.said.values()
        total = first.clone()
        for each in rest:
            total += each
        return total


class Clock:
    """Adds up processor seconds."""

    def __init__(self) -> None:
        self.spent = {"party": 0.0, "server": 0.0}

    def __call__(self, who: str | None, work: Any, *args: Any) -> Any:
        began = time.process_time()
        result = work(*args)
        if who is not None:
            self.spent[who] += time.process_time() - began
        return result


def run(how: SecureSum, x: dict[int, Terms], lost: set[int]) -> dict[str, float]:
    """A whole round; what a watched party and the server spent, masks and bytes they had."""
    clock, counted = Clock(), Counter[str]()
    whole = masks.mask

    def counting(words: Any, plus: Any = (), minus: Any = ()) -> None:
        plus, minus = list(plus), list(minus)
        counted[who] += len(plus) + len(minus)
        whole(words, plus, minus)

    import archipel.aggregation.secure as of_party
    import archipel.aggregation.unmasking as of_server

    of_party.mask = of_server.mask = counting
    sent, talks, there = 0, {}, list(x)
    for k in x:
        talks[k] = clock("party" if k in WATCHED else None, Talk, how.party(Me(k), x[k], 0))
    server = None
    while True:
        said = {k: talks[k].said for k in there}
        sent += sum(nbytes(said[k]) for k in WATCHED)
        who = "server"
        if server is None:
            form = tree_map(torch.zeros_like, x[0])
            server = clock("server", Talk, how.server(Came(said), form, 0))
        else:
            clock("server", server.send, Came(said))
        if server.ended:
            break
        for i, k in enumerate(list(there)):
            reply = server.said
            if isinstance(reply, Each):
                reply = tree_map(lambda leaf, i=i: leaf[i], reply.rows)
            if k in lost and talks[k].said[0].dim() == 1 and len(talks[k].said) == 2:
                continue  # after it has shared its keys
            who = "party" if k in WATCHED else "others"
            clock("party" if k in WATCHED else None, talks[k].send, reply)
        if isinstance(server.said, Each) and len(there) == len(x):
            there = [k for k in there if k not in lost]
    of_party.mask = of_server.mask = whole
    _check(how, x, server.said, there)
    each = len(WATCHED)
    return {
        "party": clock.spent["party"] / each, "server": clock.spent["server"],
        "bytes": sent / each, "masks": counted["party"] / each, "unmasked": counted["server"],
    }  # fmt: skip


def _check(how: SecureSum, x: dict[int, Terms], found: Any, there: list[int]) -> None:
    code = how.coding(len(x))
    total = sum((code.encode(x[k], ()).numpy() for k in there), np.int32(0))
    expected = code.decode(torch.from_numpy(total), x[0])
    assert found.present.tolist() == there
    assert torch.equal(found.sums[0], expected[0]), "the sum is not that of the integers"


def raw(count: float, size: int) -> float:
    """Processor seconds of so many key streams of so many bytes."""
    zeros, buffer = bytes(1 << 16), bytearray((1 << 16) + 15)
    began = time.process_time()
    for i in range(round(count)):
        stream = Cipher(AES256(i.to_bytes(32, "big")), CTR(bytes(16))).encryptor()
        for at in range(0, size, len(zeros)):
            stream.update_into(zeros[: size - at], buffer)
    return (time.process_time() - began) * count / round(count)


class Flower:
    """Flower's client and server in their own environment."""

    def __init__(self, parties: int, lost: int, parameters: int, near: Neighbours) -> None:
        sizes = {"parties": parties, "lost": lost, "parameters": parameters}
        given = {**sizes, "degree": near.degree, "threshold": near.threshold}
        self.process = subprocess.Popen(
            [install.python("flwr"), PEER, *(f"--{k}={v}" for k, v in given.items())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.bytes = self._answer()["bytes"]

    def ask(self, what: str) -> float:
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return float(self._answer()["seconds"])

    def _answer(self) -> dict[str, float]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"Flower ended with status {self.process.wait()}")
        answer: dict[str, float] = json.loads(line)
        return answer


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--parties", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=10**6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    n, p = options.parties, options.parameters
    lost = set(range(n - n // 10, n))
    draw = torch.Generator().manual_seed(0)
    x = {k: Terms((torch.randn(p, generator=draw),)) for k in range(n)}
    how, missing = SecureSum(), install.failure("flwr")
    flowers = {}
    if missing is None:
        for name, lies in (("flwr", True), ("fewer", False)):
            flowers[name] = Flower(n, len(lost), p, of_some(n, 0.1, 0.1, lies))
    rows = []
    for _ in range(options.reps):
        ours = run(how, x, lost)
        row = {
            **ours,
            "raw party": raw(ours["masks"], 4 * p),
            "raw server": raw(ours["unmasked"], 4 * p),
        }
        for name, flower in flowers.items():
            row |= {f"{name} {who}": flower.ask(who) for who in ("party", "server")}
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return report(options, rows, missing)


def report(options: argparse.Namespace, rows: list[dict[str, float]], missing: str | None) -> int:
    """Write what was found, and say which goals were reached."""

    def ratio(one: Any, other: Any) -> list[float]:
        return [one(row) / other(row) for row in rows]

    def of(name: str) -> Any:
        return lambda row: row[name]

    found = {
        "party, over its raw key stream": (ratio(of("party"), of("raw party")), "party", "<="),
        "server, over its raw key stream": (ratio(of("server"), of("raw server")), "server", "<="),
        "bytes of a party, over float32": (
            ratio(of("bytes"), lambda _: 4 * options.parameters), "bytes", "<=",
        ),
    }  # fmt: skip
    if missing is None:
        n = options.parties
        for who in ("party", "server"):
            found[f"Flower's {who}, over ours"] = (ratio(of(f"flwr {who}"), of(who)), "flwr", ">=")
            few = ratio(of(f"fewer {who}"), of(who))
            found[f"the same, if its server does not lie: {who}"] = (few, "", "")
        found["Flower's round, over ours"] = (
            ratio(
                lambda row: n * row["flwr party"] + row["flwr server"],
                lambda row: n * row["party"] + row["server"],
            ), "flwr", ">=",
        )  # fmt: skip
    lines = []
    for what, (ratios, goal, sign) in found.items():
        middle, spread = statistics.median(ratios), f"{min(ratios):.2f}-{max(ratios):.2f}"
        if not goal:
            lines.append(f"| {what} | {middle:.2f} | {spread} | | |")
            continue
        wanted = GOALS[goal]
        reached = middle <= wanted if sign == "<=" else middle >= wanted
        verdict = "reached" if reached else "missed"
        lines.append(f"| {what} | {middle:.2f} | {spread} | {sign} {wanted:g} | {verdict} |")
    names = ("party", "raw party", "server", "raw server", "flwr party", "flwr server")
    times = [
        f"| {name} | {1e3 * statistics.median(row[name] for row in rows):.1f} |"
        for name in names
        if name in rows[0]
    ]
    first, host = rows[0], machine({"flwr"} if missing is None else set())
    text = f"""# Secure sums

`python benchmarks/secure.py --reps {options.reps}` on {host["cpu"]}, {host["cores"]} cores:
{options.parties} parties, {options.parameters:,} numbers, a tenth of the parties lost after they
shared their keys. A party adds {first["masks"]:.1f} masks, the server takes
{first["unmasked"]:.0f} out. Processor time of one thread; ratios within a repetition, the median
and the range. {
        f"Flower: {missing}."
        if missing
        else "Flower's SecAgg+ signs nothing; it has our "
        "degree and threshold, and those that suffice if its server does not lie."
    }

| | ratio | range | goal | |
|---|---:|---:|---:|---|
{chr(10).join(lines)}

| | ms |
|---|---:|
{chr(10).join(times)}
"""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "secure.md").write_text(text)
    document = {"machine": host, "options": vars(options), "rows": rows}
    (RESULTS / "secure.json").write_text(json.dumps(document, indent=1) + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
