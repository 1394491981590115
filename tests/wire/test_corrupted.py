# SPDX-License-Identifier: Apache-2.0
"""Damaged bytes are an upload of the right form or refused in a sentence, and take no memory."""

import asyncio
import struct
import tracemalloc

import numpy as np
import pytest
import torch
import zstandard

import archipel as ar
from archipel.engines.network.coding import Coding
from archipel.engines.network.engine import NetworkEngine
from archipel.engines.network.fitting import fitted
from archipel.engines.network.letters import Letter, decode
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.transport import Refused
from archipel.engines.plan import threads
from archipel.errors import ArchipelError
from archipel.exchange.sender import Sender
from archipel.exchange.varying import arrived, travelling
from archipel.tree import fill, fits, leaves
from archipel.vector import ParamSpec
from archipel.wire import (
    Clip,
    Entropy,
    Float16,
    LowRank,
    PowerSGD,
    Quantise,
    RandomK,
    RandomMask,
    Rotate,
    Sign,
    Subsample,
    TopK,
    bits,
)
from archipel.wire.chain import Chain
from archipel.wire.wire import Wire
from problems import classification, network

SPEC = ParamSpec(("a", "b", "c"), ((30, 20), (20,), (7, 9)))
FORM = torch.zeros(SPEC.size)
ME = Sender(0, 0, 0, np.array([0]))
CHAINS = {
    "clip": (Clip(1.0),),
    "float16": (Float16(),),
    "bfloat16": (Float16("bfloat16"),),
    "rotate": (Rotate(),),
    "subsample": (Subsample(0.25),),
    **{f"{b} bits": (Quantise(b),) for b in (1, 3, 4, 8)},
    "top k": (TopK(0.1),),
    "random k": (RandomK(0.1),),
    "sign": (Sign(),),
    "power sgd": (PowerSGD(2),),
    "low rank": (LowRank(0.2),),
    "random mask": (RandomMask(0.2),),
    "entropy": (Entropy(),),
    "top k, entropy": (TopK(0.1), Entropy()),
    "sign, entropy": (Sign(), Entropy()),
    "all": (Rotate(), Subsample(0.25), Quantise(4), Entropy()),
    "power sgd, 8 bits": (PowerSGD(2), Quantise(8), Entropy()),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small matrices are quicker alone."""
    with threads(1):
        yield


def chain_of(name):
    return Chain.fitted(CHAINS[name], FORM, ME, SPEC)


def sent(chain):
    """What travels of one party's upload."""
    upload = torch.zeros(SPEC.size)
    if not chain.steps or not hasattr(chain.steps[0], "restrict"):
        upload = torch.randn(SPEC.size, generator=torch.Generator().manual_seed(0))
    payload, _ = chain.send(ME, upload, chain.init())
    return travelling(payload)


def received(chain, arrays):
    """The receiving end: whether it is an upload, or refused in a sentence."""
    whole = arrived(chain.payload, arrays)
    try:
        if len(whole) != len(leaves(chain.payload)):
            raise ArchipelError("so many arrays.")
        found = chain.receive(ME, fill(chain.payload, whole))
    except ArchipelError as error:
        said = str(error)
        assert "\n" not in said and said.endswith(".") and len(said) < 300, said
        return None
    assert fits(FORM, [found])
    return found


def raw(x):
    return bytearray(x.contiguous().view(torch.uint8).numpy().tobytes())


def of_bytes(data, x):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(x.dtype).view(x.shape)


def spoilt(draws, arrays):
    """Damage of every kind."""
    arrays = [x.clone() for x in arrays]
    at = int(draws.integers(len(arrays)))
    x = arrays[at]
    match int(draws.integers(9)):
        case 0 | 1 if x.numel():  # bits
            data = raw(x)
            for _ in range(int(draws.integers(1, 9))):
                data[draws.integers(len(data))] ^= 1 << int(draws.integers(8))
            arrays[at] = of_bytes(data, x)
        case 2 if x.numel():  # bytes
            arrays[at] = of_bytes(draws.bytes(len(raw(x))), x)
        case 3:
            arrays[at] = x.flatten()[: int(draws.integers(x.numel() + 1))]
        case 4:
            more = x.new_zeros(int(draws.integers(1, 50)))
            arrays[at] = torch.cat([x.flatten(), more])
        case 5:
            other = int(draws.integers(len(arrays)))
            arrays[at], arrays[other] = arrays[other], arrays[at]
        case 6:
            types = [torch.int64, torch.uint8, torch.float16, torch.float64, torch.bool]
            arrays[at] = x.to(types[int(draws.integers(len(types)))])
        case 7:
            arrays = arrays[:at] if draws.random() < 0.5 else [*arrays, x]
        case _:
            arrays[at] = x.new_full(x.shape, 255) if x.dtype == torch.uint8 else x * torch.nan
    return arrays


@pytest.mark.parametrize("name", CHAINS)
def test_damaged_arrays_are_an_upload_or_a_sentence(name):
    chain, draws = chain_of(name), np.random.default_rng(1)
    good = sent(chain)
    assert received(chain, good) is not None
    outcomes = [received(chain, spoilt(draws, good)) is None for _ in range(150)]
    assert any(outcomes)


@pytest.mark.parametrize("name", CHAINS)
def test_numbers_that_are_none_stay_so_and_do_no_harm(name):
    chain = chain_of(name)
    for bad in (torch.nan, torch.inf, -torch.inf, 3e38):
        arrays = [
            torch.full(x.shape, bad).to(x.dtype) if x.is_floating_point() else x
            for x in sent(chain)
        ]
        received(chain, arrays)


# -- memory ----------------------------------------------------------------------------------------


def frame(size, announced=True):
    options = zstandard.ZstdCompressor(level=1, write_content_size=announced)
    return options.compress(bytes(size))


def bombs(size):
    """Frames that would take gigabytes, or that are none, for a message of this size."""
    huge = 4 << 30
    header = b"\x28\xb5\x2f\xfd"
    skippable = struct.pack("<II", 0x184D2A50, 100) + bytes(100)
    yield header + b"\xe0" + struct.pack("<Q", huge) + bytes(20)  # announces gigabytes
    yield header + b"\xe0" + struct.pack("<Q", size) + bytes(20)  # the right size, and nothing
    yield header + b"\xc0\xff" + struct.pack("<Q", size) + b"\x01\x00\x00"  # a window of terabytes
    yield header + b"\x00\x88" + b"\x01\x00\x00"  # no size, a window of 128 MB
    yield frame(64 << 20)
    yield frame(64 << 20, announced=False)
    yield frame(size, announced=False)
    yield frame(size) + frame(size)
    yield frame(size // 2) + frame(size - size // 2)
    yield frame(size) + frame(64 << 20)
    yield skippable
    yield skippable + frame(size)
    yield frame(size) + skippable
    yield frame(size) + b"\0"
    yield frame(size)[:-1]
    yield b""


@pytest.mark.parametrize("name", ["entropy", "top k, entropy", "all"])
def test_frames_that_announce_gigabytes_take_no_memory(name):
    chain = chain_of(name)
    room = chain.payload.coded.data.shape[-1]
    size = room - 1
    whole = torch.frombuffer(bytearray(b"\1" + frame(size)), dtype=torch.uint8)
    received(chain, [whole])  # zeros are an upload, or no positions
    for how in (b"\0", b"\1", b"\2", b"\xff", b""):
        for bomb in bombs(size):
            data = bytearray(how + bomb) or bytearray(1)
            tracemalloc.start()
            assert received(chain, [torch.frombuffer(data, dtype=torch.uint8)]) is None
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 200_000 + 8 * (len(data) + size)


def test_a_frame_of_the_right_size_that_holds_more_is_refused():
    """The header of a small frame before the blocks of a large one."""
    chain = chain_of("entropy")
    size = chain.payload.coded.data.shape[-1] - 1
    large = frame(1 << 20)
    lies = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", size) + large[9:]
    assert received(chain, [torch.frombuffer(bytearray(b"\1" + lies), dtype=torch.uint8)]) is None


def test_random_bytes_are_no_frame():
    chain, draws = chain_of("entropy"), np.random.default_rng(2)
    for _ in range(300):
        data = b"\1\x28\xb5\x2f\xfd" + draws.bytes(int(draws.integers(1, 60)))
        assert received(chain, [torch.frombuffer(bytearray(data), dtype=torch.uint8)]) is None


# -- positions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "k"), [(600, 60), (63, 1), (100_000, 3), (64, 64)])
def test_marks_with_wrong_counts_are_refused(n, k):
    at = torch.arange(k) * (n // k)
    lows, marks = bits.positions_coded(at, n)
    for wrong in (marks * 0, marks | 255, marks ^ 1, marks.flip(-1) * 0 + 1):
        if int(np.unpackbits(wrong.numpy()).sum()) == k:
            continue
        with pytest.raises(ArchipelError, match=f"{k} numbers among {n}: the bytes are damaged"):
            bits.positions(lows, wrong, n, k)


def test_positions_that_do_not_rise_or_are_none_are_refused():
    n, k = 100, 6  # four low bits, and two that are marks
    lows, marks = bits.positions_coded(torch.tensor([1, 2, 3, 50, 60, 99]), n)
    with pytest.raises(ArchipelError, match="not 6 rising positions among 100"):
        bits.positions(lows * 0, marks, n, k)  # the first three are the same then
    with pytest.raises(ArchipelError, match="not 6 rising positions among 100"):
        bits.positions(lows | 255, marks, n, k)


@pytest.mark.parametrize("name", ["top k", "top k, entropy"])
def test_any_marks_are_positions_or_refused(name):
    chain, draws = chain_of("top k"), np.random.default_rng(3)
    good = sent(chain)
    for _ in range(300):
        bad = [
            torch.from_numpy(draws.permutation(x.numpy())) if x.dtype == torch.uint8 else x
            for x in good
        ]
        found = received(chain, bad)
        if found is not None:
            matrices = [x for x in good if x.is_floating_point() and x.dim() == 2]
            few = chain.layout.cut([found])[-1].numel()
            assert int((found != 0).sum()) <= sum(x.numel() for x in matrices) + few


# -- over letters ----------------------------------------------------------------------------------

DATA = classification(3, 12, 3, 0, torch.float32)
FEDAVG = ar.FedAvg(lr=0.1, batch_size=4)


def model():
    made = network(12, 3, hidden=9)
    return ar.Model(made.module.float())


@pytest.mark.parametrize("name", CHAINS)
def test_a_coordinator_refuses_damaged_uploads_and_the_round_goes_on(name, monkeypatch):
    """Each is refused in one sentence, or taken, or its party counts as diverged."""
    monkeypatch.setattr("archipel.engines.network.engine.MOST_REFUSED", 1000)
    wire = Wire(up=CHAINS[name])
    boxes, anatomy = fitted(FEDAVG, DATA, model(), 0, 0, wire, 3)
    engine = NetworkEngine(boxes, model(), anatomy, 3, "s")
    draws = np.random.default_rng(4)

    async def play():
        running = asyncio.create_task(engine.round(0, [0]))
        while engine.opened is None:
            await asyncio.sleep(0)
        letter = decode(b"".join(engine.work_for(0).pieces))
        data = DATA.select(np.array([0]))
        party = PartyState(FEDAVG, data, model(), party=0, wire=wire, parties=3, private=False)
        arrays, gradients = party.work(0, 0, list(letter.arrays), letter["attempt"])
        fields = {each: letter[each] for each in ("study", "round", "number", "attempt")}
        fields |= {"n": party.n, "gradients": gradients, "answers": letter.name}
        refused = 0
        for _ in range(60):
            try:
                engine.upload(0, Letter("upload", fields, spoilt(draws, arrays)))
            except Refused as no:
                refused += 1
                assert str(no).startswith("round 1: ") and "\n" not in str(no)
            opened = engine.opened
            for leaf in opened.uploads[0].arrays if 0 in opened.uploads else ():
                assert bool(torch.isfinite(leaf).all())
            opened.uploads.clear()
            opened.lost.clear()
        engine.upload(0, Letter("upload", fields, arrays))
        outcome = await running
        return outcome, refused

    outcome, refused = asyncio.run(asyncio.wait_for(play(), 60))
    assert outcome.arrived.tolist() == [0] and refused > 5
    assert bool(torch.isfinite(engine.vector()).all())


PEERS = ["float16", "bfloat16", "rotate", "8 bits", "entropy"]


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_refuses_damaged_vectors(name):
    dsgd = ar.DSGD(lr=0.1, batch_size=4)
    boxes, _ = fitted(dsgd, DATA, model(), 0, 0, Wire(up=CHAINS[name]), 3)
    coding, like, draws = Coding.of(boxes, 0), model().w, np.random.default_rng(5)
    chain = coding.chains[0]
    payload, _ = chain.send(ME, like, chain.init())
    good = travelling(payload)
    form = coding.form(0, like)
    torch.testing.assert_close(
        coding.undone(0, (0, 0), arrived(form, good), like), like, rtol=0.05, atol=0.02
    )
    refused = 0
    for _ in range(150):
        try:
            found = coding.undone(0, (0, 0), arrived(form, spoilt(draws, good)), like)
            assert fits(like, [found]) and bool(torch.isfinite(found).all())
        except Refused as no:
            refused += 1
            assert str(no).endswith(".") and "\n" not in str(no)
    assert refused > 20
