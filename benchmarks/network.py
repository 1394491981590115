# SPDX-License-Identifier: Apache-2.0
"""The network engine: a thousand sites at once, bytes per second over TLS, cost of an upload.

load: a coordinator in one process; sites with a certificate, a connection and a seat each in two
others. They wait for work, then rounds sample some of them.
throughput: a letter with a model's parameters there and back between two processes, and as many
bytes over a plain TLS socket between two others, in turns; `openssl s_time` fetches as many from
`openssl s_server` before and after. Letters are sealed before the clock starts, as the coordinator
does once for all sites.
aggregation: what the engine does with an upload that has come, and one pass over as many bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

import archipel as ar
from archipel.data.shadow import Facts
from archipel.engines.network.engine import NetworkEngine, Opened
from archipel.engines.network.fitting import fitted
from archipel.engines.network.grpc import Credentials, GrpcLink, GrpcServer
from archipel.engines.network.letters import Letter, Sealed, decode, encode
from archipel.engines.network.party_loop import PartyLoop
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.server import Steps
from archipel.federation import approval
from archipel.federation.certificates import (
    COORDINATOR,
    Authority,
    Identity,
    new_key,
    pem_of,
    serial,
    verify,
)
from archipel.federation.coordinator.coordinator import Coordinator
from archipel.federation.coordinator.folder import CoordinatorFolder
from archipel.federation.site.site import signed
from processes import cpu_seconds, describe, machine_cpu_seconds, memory

RESULTS = Path(__file__).resolve().parent / "results"
CIPHER = Path(__file__).resolve().with_name("openssl.cnf")  # plain sockets use that of gRPC
IDLE = 22.0  # seconds, in which every site asks anew
FEATURES, POINTS = 13, 30  # of a light site
WIDE, CLASSES = 166_336, 10
PARAMETERS = WIDE * CLASSES + CLASSES  # 1,663,370, as many as McMahan et al.'s CNN has
UPLOADS = 20
WAYS = ("up", "down")
DAY = timedelta(days=1)
DISTURBED = 0.2  # cores that others may use before figures are in doubt

STUDY = """
[study]
name = "load"
rounds = {rounds}
evaluate_every = {rounds}
[data]
name = "heart_disease"
[model]
name = "logistic"
[algorithm]
name = "fedavg"
lr = 0.1
local_steps = 5
batch_size = 10
[round]
sample = {sampled}
"""

Row = dict[str, Any]


def row(
    what: str, unit: str, values: list[float], goal: str = "", reached: bool | None = None
) -> Row:
    """A line of the table: the median and the range of what was measured."""
    return {
        "what": what,
        "unit": unit,
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
        "goal": goal,
        "reached": reached,
    }


class Other:
    """A process that plays one side; lines of JSON go there and back."""

    def __init__(self, side: str, **given: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--side", side],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OPENSSL_CONF": str(CIPHER)},
            text=True,
        )
        self.pid = self._process.pid
        self.tell(given)

    def tell(self, what: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a side of the benchmark ended with {self._process.wait()}.")
        return json.loads(line)

    def ask(self, what: Any) -> Any:
        self.tell(what)
        return self.hear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()


def say(what: Any) -> None:
    """Of an other side: tell the main process."""
    print(json.dumps(what), flush=True)


async def told() -> Any:
    """Of an other side: what the main process says, or None when it has gone."""
    line = await asyncio.to_thread(sys.stdin.readline)
    return json.loads(line) if line else None


def note(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)


# -- load ------------------------------------------------------------------------------------------


def light(k: int) -> ar.Federation:
    """The data of a light site."""
    draws = torch.Generator().manual_seed(k)
    x = torch.randn(POINTS, FEATURES, generator=draws)
    return ar.Federation(
        x=x,
        y=(x[:, 0] + x[:, 1] > 0).long(),
        offsets=torch.tensor([0, POINTS]),
        test_from=torch.tensor([POINTS - 5]),
        training=1,
        task="classification",
        classes=2,
        scan=False,
    )


async def coordinator_side(given: dict[str, Any]) -> None:
    """Enrol sites, wait until told to run the study, tell when each round was done."""
    folder, sites = Path(given["folder"]), given["sites"]
    with socket.create_server(("localhost", 0)) as free:
        address = f"localhost:{free.getsockname()[1]}"
    home = CoordinatorFolder.create(folder / "coordinator", "load", address)
    text = STUDY.format(rounds=given["rounds"], sampled=given["sampled"]).encode()
    digest = home.submit(text)
    keys = [(new_key(), Identity.create()) for _ in range(sites)]
    chains = [
        home.authority.certify(key.public_key(), f"site-{k}", DAY)
        for k, (key, _) in enumerate(keys)
    ]
    members = [
        [pem_of(key).decode(), chain.decode(), identity.pem.decode()]
        for (key, identity), chain in zip(keys, chains, strict=True)
    ]
    about = {"address": address, "authority": home.authority.pem.decode(), "study": text.decode()}
    (folder / "members.json").write_text(json.dumps({**about, "members": members}))
    say("members")
    one = Coordinator(home)
    facts, until = Facts.of(light(0)).to_json(), datetime.now(UTC) + DAY
    for k, ((_, identity), chain) in enumerate(zip(keys, chains, strict=True)):
        name, approved = f"site-{k}", approval.statement(digest, "approved")
        one.registry.invite(name, b"secret", until)
        one.registry.redeem(name, b"secret", identity.public, serial(chain), until)
        one.registry.decide(digest, name, "approved", facts, identity.sign(approved))
        one.registry.party_state(digest, name)
    await one.up(address)
    say("up")
    times: list[float] = []

    class Clock:
        def __call__(self, run: ar.Run) -> None:
            if run.done == len(times):
                times.append(time.perf_counter())

        def say(self, text: str) -> None: ...

    while (word := await told()) is not None:
        if word == "seen":
            say(len(one.seen))
            continue
        run = await one.run(digest, Clock())
        present = [len(cohort.present) for cohort in run.participation]
        say(
            {"times": times, "present": present, "accuracy": run.history[-1]["metrics"]["accuracy"]}
        )
    await one.down()


async def sites_side(given: dict[str, Any]) -> None:
    """Take seats, connect when told to, and tell how many rounds there were."""
    torch.set_num_threads(1)
    about = json.loads((Path(given["folder"]) / "members.json").read_text())
    text = about["study"].encode()
    study, digest = approval.read(text), approval.hash_of(text)
    attending = []
    for party, member in enumerate(about["members"]):
        if party % given["of"] != given["number"]:
            continue
        key, chain, identity = (pem.encode() for pem in member)
        data, me = light(party), Identity.read(identity)
        party_state = PartyState(study.algorithm_object, data, study.build_model(data), party=party)
        tls = Credentials(key, chain, about["authority"].encode())

        def sign(letter: Letter, me: Identity = me) -> bytes:
            return me.sign(signed(letter))

        link = GrpcLink(about["address"], COORDINATOR, tls)
        attending.append(PartyLoop(party_state, link, digest, sign=sign))
    say("seated")
    await told()
    say(await asyncio.gather(*(each.run() for each in attending)))
    await told()


def load(options: argparse.Namespace) -> list[Row]:
    """Connect all sites, let them wait, run the rounds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8 * options.sites)), hard))
    count, sampled, rounds = options.sites, options.sampled, options.rounds
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        given = {"folder": folder, "sites": count, "sampled": sampled, "rounds": rounds}
        one = stack.enter_context(Other("coordinator", **given))
        one.hear()
        sides = [Other("sites", folder=folder, number=i, of=2) for i in range(2)]
        for side in sides:
            stack.enter_context(side)
            side.hear()
        one.hear()
        note(f"{count} sites are enrolled and have their seats")
        before, began = memory(one.pid).rss, time.perf_counter()
        for side in sides:
            side.tell("connect")
        while one.ask("seen") < count:
            time.sleep(0.2)
        connected = time.perf_counter() - began
        note(f"connected in {connected:.1f} s")
        time.sleep(2.0)
        used, began = cpu_seconds(one.pid), time.perf_counter()
        time.sleep(IDLE)
        idle = (cpu_seconds(one.pid) - used) / (time.perf_counter() - began)
        each = 1024 * (memory(one.pid).rss - before) / count
        note(f"{each:.0f} kB per idle site, {100 * idle:.0f} % of a core")
        used = cpu_seconds(one.pid)
        ran = one.ask("run")
        done = [number for side in sides for number in side.hear()]
        used = cpu_seconds(one.pid) - used
        after = memory(one.pid).rss
    took = [b - a for a, b in zip(ran["times"], ran["times"][1:], strict=False)]
    whole = sum(present == sampled for present in ran["present"])
    there = sum(number == rounds for number in done)
    return [
        row(f"rounds with {sampled} of {count} sites, all uploads", "", [whole], str(rounds),
            whole == rounds),
        row("sites that took part to the end", "", [there], str(count), there == count),
        row("memory of the coordinator per idle site", "kB", [each], "< 200", each < 200),
        row("memory of the coordinator in all, after the rounds", "MB", [after]),
        row("processor time of the coordinator, all sites idle", "% of a core", [100 * idle]),
        row("all sites connect", "s", [connected]),
        row("a round", "s", took),
        row("processor time of the coordinator, a round", "s", [used / rounds]),
    ]  # fmt: skip


# -- throughput ------------------------------------------------------------------------------------


def shown(authority: Authority, name: str) -> Credentials:
    key = new_key()
    return Credentials(pem_of(key), authority.certify(key.public_key(), name, DAY), authority.pem)


def model(arrays: int = 1) -> Letter:
    """A letter with the parameters of a model, or without."""
    fields = {"study": "s", "number": 0}
    return Letter("advice", fields, [torch.randn(PARAMETERS)] * arrays)


async def port_side(_: dict[str, Any]) -> None:
    """The coordinator's port: thanks for a model, gives one to who brings none."""
    authority, sealed = Authority.create("throughput"), Sealed(model())

    async def answer(who: str, letter: Letter) -> Letter | Sealed:
        return Letter("thanks") if letter.arrays else sealed

    server = GrpcServer(answer, lambda caller: caller.name)
    port = await server.start("127.0.0.1:0", shown(authority, COORDINATOR))
    mine = shown(authority, "site")
    pems = [pem.decode() for pem in (mine.key, mine.chain, mine.authority)]
    say({"port": port, "pems": pems})
    await told()
    await server.stop()


async def line_side(given: dict[str, Any]) -> None:
    """A site's way to that port: seconds of a model up, or down."""
    tls = Credentials(*(pem.encode() for pem in given["pems"]))
    link = GrpcLink(f"127.0.0.1:{given['port']}", COORDINATOR, tls, most=1 << 30)
    letters = {"up": model(), "down": model(0)}
    while (way := await told()) is not None:
        assert letters[way].sealed
        began = time.perf_counter()
        await link.ask(letters[way])
        say(time.perf_counter() - began)
    await link.close()


def _context(given: dict[str, Any], server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
    with tempfile.NamedTemporaryFile() as file:
        file.write("".join(given["pems"][:2]).encode())
        file.flush()
        context.load_cert_chain(file.name)
    context.load_verify_locations(cadata=given["pems"][2])
    return context


def _receive(tls: ssl.SSLSocket, into: memoryview) -> None:
    at = 0
    while at < len(into):
        at += tls.recv_into(into[at:])


async def socket_side(given: dict[str, Any]) -> None:
    """A plain TLS socket: thanks for so many bytes, gives as many to who asks."""
    data = memoryview(bytearray(model(1).sealed.size))
    with socket.create_server(("127.0.0.1", 0)) as server:
        say(server.getsockname()[1])
        raw, _ = server.accept()
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with _context(given, True).wrap_socket(raw, server_side=True) as tls:
        while way := tls.recv(1):
            if way == b"u":
                _receive(tls, data)
                tls.sendall(b"k")
            else:
                tls.sendall(data)


async def plain_side(given: dict[str, Any]) -> None:
    """The other end of that socket: seconds of as many bytes up, or down."""
    data = memoryview(b"".join(model(1).sealed.pieces))
    into = memoryview(bytearray(len(data)))
    raw = socket.create_connection(("127.0.0.1", given["port"]))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with _context(given, False).wrap_socket(raw) as tls:
        while (way := await told()) is not None:
            began = time.perf_counter()
            tls.sendall(way[:1].encode())
            if way == "up":
                tls.sendall(data)
                tls.recv(1)
            else:
                _receive(tls, into)
            say(time.perf_counter() - began)


def throughput(options: argparse.Namespace) -> list[Row]:
    """Ours and the plain socket in turns, up and down."""
    authority, size = Authority.create("plain"), model().sealed.size
    times: dict[str, list[float]] = {
        f"{who} {way}": [] for who in ("ours", "plain") for way in WAYS
    }
    with ExitStack() as stack:
        port = stack.enter_context(Other("port"))
        ours = stack.enter_context(Other("line", **port.hear()))
        both = [shown(authority, name) for name in (COORDINATOR, "site")]
        pems = [[pem.decode() for pem in (c.key, c.chain, c.authority)] for c in both]
        end = stack.enter_context(Other("socket", pems=pems[0]))
        plain = stack.enter_context(Other("plain", pems=pems[1], port=end.hear()))
        for rep in range(-5, options.reps):
            for way in WAYS:
                for who, side in (("ours", ours), ("plain", plain))[:: 1 if rep % 2 else -1]:
                    seconds = side.ask(way)
                    if rep >= 0:
                        times[f"{who} {way}"].append(seconds)
        before = [_s_time(both[0], both[1], size)]
    openssl = [*before, _s_time(both[0], both[1], size)]
    rows = [row("as many by openssl s_time, a connection each, MB/s", "MB/s", openssl)]
    for way in WAYS:
        speeds = {who: [size / 1e6 / s for s in times[f"{who} {way}"]] for who in ("ours", "plain")}
        ratio = statistics.median(speeds["ours"]) / statistics.median(speeds["plain"])
        named = statistics.median(speeds["ours"]) / statistics.median(openssl)
        rows += [
            row(f"{size / 1e6:.2f} MB {way}, in letters", "MB/s", speeds["ours"]),
            row(f"as many {way}, over an open TLS socket", "MB/s", speeds["plain"]),
            row(f"ratio {way}, to openssl s_time", "", [named], ">= 0.5", named >= 0.5),
            row(f"ratio {way}, to the open socket", "", [ratio]),
        ]
    return rows


def _s_time(server: Credentials, site: Credentials, size: int, seconds: int = 5) -> float:
    """MB/s that `openssl s_time` gets from `openssl s_server`, with a new connection each time."""
    with tempfile.TemporaryDirectory() as folder:
        files = {
            "server.pem": server.key + server.chain,
            "site.pem": site.key + site.chain,
            "authority.pem": server.authority,
            "model.bin": os.urandom(size),
        }
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        common = ["-CAfile", "authority.pem"]
        serve = ["openssl", "s_server", "-WWW", "-accept", str(port), "-Verify", "1", "-quiet"]
        fetch = ["openssl", "s_time", "-connect", f"127.0.0.1:{port}", "-www", "/model.bin"]
        with subprocess.Popen(
            [*serve, "-cert", "server.pem", "-key", "server.pem", *common],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as end:  # fmt: skip
            time.sleep(0.5)
            began = time.perf_counter()
            done = subprocess.run(
                [*fetch, "-time", str(seconds), "-new", "-cert", "site.pem", "-key", "site.pem",
                 *common],
                cwd=folder, capture_output=True, text=True, check=True,
            )  # fmt: skip
            took = time.perf_counter() - began
            end.kill()
    fetched = int(done.stdout.split("bytes read ")[1].split()[0])
    return fetched / 1e6 / took


# -- aggregation -----------------------------------------------------------------------------------


@contextmanager
def clock(times: list[float], parts: int = 1) -> Iterator[None]:
    """Note the milliseconds of each part."""
    began = time.perf_counter()
    yield
    times.append(1e3 * (time.perf_counter() - began) / parts)


def aggregation(options: argparse.Namespace) -> list[Row]:
    """Take uploads and add them up; a pass is the sum of one more array of that size."""
    torch.set_num_threads(1)
    x = torch.randn(2, WIDE)
    data = ar.Federation(
        x=x, y=torch.tensor([0, 1]), offsets=torch.tensor([0, 2]), test_from=torch.tensor([2]),
        training=1, task="classification", classes=CLASSES, scan=False,
    )  # fmt: skip
    net, algorithm = ar.Model(nn.Linear(WIDE, CLASSES)), ar.FedAvg(lr=0.1, batch_size=2)
    boxes, anatomy = fitted(algorithm, data, net, 0, 0)
    engine = NetworkEngine(boxes, net, anatomy, UPLOADS, "s")
    sealed, me, parties = Sealed(Letter("thanks")), Identity.create(), list(range(UPLOADS))
    steps = Steps(boxes, anatomy, engine.shared, UPLOADS, 0)
    fields = {"study": "s", "round": 0, "number": 0, "attempt": 0, "n": 5.0, "gradients": 1}
    letters = [
        Letter("upload", {**fields, "answers": sealed.name}, [torch.randn(PARAMETERS)])
        for _ in parties
    ]
    came = [encode(letter.adding(signature=b"")) for letter in letters]
    arrays, total = [letter.arrays[0] for letter in letters], torch.zeros(PARAMETERS)
    times: dict[str, list[float]] = {name: [] for name in ("take", "add", "pass", "seal", "check")}
    for _ in range(max(3, options.reps // 4)):
        engine.opened = opened = Opened(0, 0, 0, dict.fromkeys(parties, sealed))
        with clock(times["take"], UPLOADS):
            for k in parties:
                engine.upload(k, decode(came[k]))
        with clock(times["add"], UPLOADS):
            steps._received(0, opened.uploads)
        with clock(times["pass"], UPLOADS):
            for k in parties:
                total.add_(arrays[k], alpha=5.0)
        fresh = Letter("upload", letters[0].fields, arrays[:1])
        with clock(times["seal"]):
            assert fresh.adding(signature=me.sign(signed(fresh))).sealed
        found = decode(came[0])
        with clock(times["check"]):
            verify(me.public, b"0" * 64, signed(found))
    costs = [a + b for a, b in zip(times["take"], times["add"], strict=True)]
    ratio = statistics.median(costs) / statistics.median(times["pass"])
    return [
        row("an upload at the server: read, looked through", "ms", times["take"]),
        row("an upload at the server: added up", "ms", times["add"]),
        row("one pass over as many bytes", "ms", times["pass"]),
        row("passes that an upload costs, of the medians", "", [ratio], "<= 2", ratio <= 2),
        row("besides, once per upload at the site: hash, sign, seal", "ms", times["seal"]),
        row("and at the coordinator: hash, check the signature", "ms", times["check"]),
    ]


# -- all -------------------------------------------------------------------------------------------

SIDES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "coordinator": coordinator_side,
    "sites": sites_side,
    "port": port_side,
    "line": line_side,
    "socket": socket_side,
    "plain": plain_side,
}
PARTS = {"load": load, "throughput": throughput, "aggregation": aggregation}


async def play(side: str) -> None:
    await SIDES[side](await told())


def table(parts: dict[str, Any]) -> str:
    lines = ["| | | median | range | goal | |", "|---|---|---:|---:|---:|---|"]
    for part, found in parts.items():
        for each in found["rows"]:
            low, high = f"{each['low']:.3g}", f"{each['high']:.3g}"
            reached = {None: "", True: "reached", False: "not reached"}[each["reached"]]
            if reached and found["others"] > DISTURBED:
                reached += ", but disturbed: measure again"
            unit = f", {each['unit']}" if each["unit"] else ""
            cells = [part, each["what"] + unit, f"{each['median']:.4g}"]
            cells += ["" if low == high else f"{low} to {high}", each["goal"], reached]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def disturbance(parts: dict[str, Any]) -> str:
    busy = {part: found["others"] for part, found in parts.items() if found["others"] > DISTURBED}
    if not busy:
        return "Nothing else ran."
    told = ", ".join(f"{cores:.1f} cores during {part}" for part, cores in busy.items())
    return f"Other processes used {told}: figures are rough."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all without any")
    parser.add_argument("--sites", type=int, default=1000)
    parser.add_argument("--sampled", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--reps", type=int, default=40, help="transfers each way")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for network.json, .md")
    parser.add_argument("--side", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        asyncio.run(play(options.side))
        return
    options.output.mkdir(parents=True, exist_ok=True)
    kept = options.output / "network.json"
    before = json.loads(kept.read_text())["parts"] if kept.exists() else {}
    for part in options.parts or PARTS:
        note(part)
        machine, began, used = machine_cpu_seconds(), time.perf_counter(), _used()
        rows = PARTS[part](options)
        seconds = time.perf_counter() - began
        others = (machine_cpu_seconds() - machine - (_used() - used)) / seconds
        before[part] = {"rows": rows, "seconds": seconds, "others": max(0.0, others)}
    parts = {part: before[part] for part in PARTS if part in before}
    host = {**describe(), "torch": torch.__version__, "openssl": ssl.OPENSSL_VERSION}
    text = f"""# The network engine: load, throughput, cost of an upload

`python benchmarks/network.py` on {host["cpu"]}, {host["cores"]} cores, {host["openssl"]}; all on
this machine, over mutual TLS 1.3 with AES-128-GCM. Sites are light: logistic regression on {POINTS}
points. Letters hold {PARAMETERS:,} float32 parameters.
{disturbance(parts)}

{table(parts)}
"""
    kept.write_text(json.dumps({"machine": host, "parts": parts}, indent=1) + "\n")
    (options.output / "network.md").write_text(text)
    print(text)


def _used() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return float(sum(each.ru_utime + each.ru_stime for each in times))


if __name__ == "__main__":
    main()
