"""What protocols are made of: keys, masks, shared secrets, numbers as integers, neighbours."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from archipel.aggregation import shamir
from archipel.aggregation.fixed_point import FixedPoint
from archipel.aggregation.keys import KeyPair, Session, hkdf, seal, unseal
from archipel.aggregation.masks import mask
from archipel.aggregation.neighbours import apart, connected, of_all, of_some
from archipel.errors import ArchipelError
from archipel.signing import Signer, verify

ALPHA = 1e-4
SESSION = Session(b"a study", 3, 1, b"these")


def key(seed):
    return np.random.default_rng(seed).bytes(32)


# -- keys ------------------------------------------------------------------------------------------


def test_hkdf_is_that_of_rfc_5869():
    found = hkdf(bytes([0x0B] * 22), bytes(range(13)), bytes(range(0xF0, 0xFA)), 42)

    assert found.hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )


def test_public_keys_are_those_of_rfc_7748_and_rfc_8032():
    pair = KeyPair(
        bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    )
    signer = Signer(
        bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    )

    assert pair.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert signer.public.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


def test_two_parties_agree_and_every_other_context_has_another_key():
    one, other, third = (KeyPair(key(seed)) for seed in range(3))

    agreed = one.agree(other.public, SESSION, "mask", (1, 2))

    assert agreed == other.agree(one.public, SESSION, "mask", (1, 2))
    elsewhere = [
        one.agree(third.public, SESSION, "mask", (1, 2)),
        one.agree(other.public, SESSION, "shares", (1, 2)),
        one.agree(other.public, SESSION, "mask", (2, 1)),
        one.agree(other.public, SESSION, "mask", (1, 22)),
        *(
            one.agree(other.public, SESSION._replace(**change), "mask", (1, 2))
            for change in (
                {"study": b"another"},
                {"round": 4},
                {"message": 2},
                {"among": b"others"},
                {"round": 31, "message": 1},
            )
        ),
    ]
    assert len({agreed, *elsewhere}) == len(elsewhere) + 1


@pytest.mark.parametrize("public", [bytes(32), bytes([1]) + bytes(31), b"short"])
def test_a_key_that_makes_one_secret_with_everybody_is_refused(public):
    with pytest.raises(ArchipelError, match=r"parties \[1, 2\] is no key"):
        KeyPair(key(0)).agree(public, SESSION, "mask", (1, 2))


def test_agreed_keys_have_all_their_bits():
    """Keys folded to 32 bits, or of text, repeat or have bits that never change."""
    one = KeyPair(key(0))
    agreed = [one.agree(KeyPair(key(9 + i)).public, SESSION, "mask", (1, 2)) for i in range(2000)]

    bits = np.unpackbits(np.frombuffer(b"".join(agreed), np.uint8).reshape(2000, 32), axis=1)

    assert len({a[:8] for a in agreed}) == 2000
    z = (bits.mean(axis=0) - 0.5) * 2 * np.sqrt(2000)
    assert np.abs(z).max() < stats.norm.isf(ALPHA / 2 / 256)


def test_what_is_sealed_opens_with_its_key_alone_and_unchanged():
    sealed = seal(key(1), b"a share")

    assert unseal(key(1), sealed) == b"a share"
    assert unseal(key(2), sealed) is None
    assert unseal(key(1), sealed[:5]) is None
    for at in range(len(sealed)):
        changed = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        assert unseal(key(1), changed) is None


def test_a_signature_is_of_one_key_and_one_text():
    signer = Signer(key(1))
    signed = signer.sign(b"text")

    assert verify(signer.public, signed, b"text")
    assert not verify(signer.public, signed, b"texts")
    assert not verify(Signer(key(2)).public, signed, b"text")
    assert not verify(signer.public, signed[:-1], b"text")
    assert not verify(b"no key", signed, b"text")


# -- masks -----------------------------------------------------------------------------------------


def test_a_mask_is_the_key_stream_of_aes_256():
    words = np.zeros(8, np.uint32)
    mask(words, plus=[bytes(32)])

    assert words.astype("<u4").tobytes().hex() == (
        "dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738b"
    )  # AES-256 of the counters 0 and 1 under the key zero: AESAVS, and GCM's test case 13


@settings(max_examples=25, deadline=None)
@given(
    size=st.sampled_from([0, 1, 3, 16383, 16384, 16385, 50_001]),
    dtype=st.sampled_from([np.uint32, np.uint64]),
    plus=st.integers(0, 3),
    minus=st.integers(0, 3),
)
def test_masks_cancel_whatever_the_size(size, dtype, plus, minus):
    words = np.arange(size, dtype=dtype)
    some, others = [key(i) for i in range(plus)], [key(10 + i) for i in range(minus)]

    mask(words, some, others)
    whole = words.copy()
    mask(words, others, some)

    assert (words == np.arange(size, dtype=dtype)).all()
    assert size == 0 or plus + minus == 0 or (whole != np.arange(size, dtype=dtype)).any()


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_masks_are_uniform_over_the_whole_range(dtype):
    words = np.zeros(1_000_000, dtype)
    mask(words, plus=[key(5)])

    for byte in words.view(np.uint8).reshape(len(words), -1).T:
        assert stats.chisquare(np.bincount(byte, minlength=256)).pvalue > ALPHA


def test_the_largest_word_is_as_likely_as_any_other():
    """Other systems draw below the modulus less one, so that the largest never comes."""
    words = np.zeros(1 << 24, np.uint32)
    mask(words, plus=[key(6)])
    tops = int((words >> 12 == (1 << 20) - 1).sum())  # 2^4 are expected

    assert stats.poisson(16).ppf(ALPHA) <= tops <= stats.poisson(16).isf(ALPHA)
    assert (words & 0xFFF == 0xFFF).any()


# -- shared secrets --------------------------------------------------------------------------------


def test_the_field_is_one():
    """Miller and Rabin's test, with bases that a composite of this size passes with 4^-40."""
    P = shamir.P
    odd, twos = P - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        x = pow(base, odd, P)
        assert x in (1, P - 1) or any((x := x * x % P) == P - 1 for _ in range(twos - 1))


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 8), st.integers(0, 4), st.randoms())
def test_any_threshold_of_shares_tell_the_secret(secret, threshold, more, random):
    points = random.sample(range(1, 1000), threshold + more)
    told = dict(zip(points, shamir.shares(secret, threshold, points, key(1)), strict=True))

    some = random.sample(points, threshold)

    assert shamir.join({x: told[x] for x in some}) == secret
    assert len({len(share) for share in told.values()}) == 1


def test_every_subset_of_the_threshold_tells_it_and_none_below():
    secret, points = bytes([255] * 32), [1, 2, 3, 4, 5]
    told = dict(zip(points, shamir.shares(secret, 3, points, key(1)), strict=True))

    for some in combinations(points, 3):
        assert shamir.join({x: told[x] for x in some}) == secret
    for some in combinations(points, 2):
        assert shamir.join({x: told[x] for x in some}) != secret


def test_fewer_shares_than_the_threshold_tell_nothing():
    """Two shares of three are as likely for one secret as for another."""
    low = [[], []]
    for which, secret in enumerate((bytes(32), bytes([255] * 32))):
        for seed in range(4000):
            told = shamir.shares(secret, 3, [1, 2, 3], key(seed + 5000 * which))
            low[which].append((told[0][-1] + 7 * told[1][-1]) % 256)

    counts = np.array([np.bincount(each, minlength=256) for each in low])
    assert stats.chi2_contingency(counts[:, counts.sum(axis=0) > 0]).pvalue > ALPHA


@pytest.mark.parametrize("threshold, points", [(0, [1, 2]), (3, [1, 2]), (2, [0, 1]), (2, [1, 1])])
def test_shares_that_would_tell_too_much_are_refused(threshold, points):
    with pytest.raises(ArchipelError, match="give a threshold from 1"):
        shamir.shares(bytes(32), threshold, points, key(1))


# -- numbers as integers ---------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    parties=st.sampled_from([1, 2, 3, 100, 12_345]),
    bits=st.sampled_from([32, 64]),
    scale=st.sampled_from([1e-6, 0.3, 8.0, 1e6]),
    sign=st.sampled_from([-1, 1]),
)
def test_the_largest_numbers_of_all_parties_do_not_overflow(parties, bits, scale, sign):
    code = FixedPoint(scale, parties, bits)
    coded = code.encode(torch.tensor([sign * scale, 0.0, scale / 3], dtype=torch.float64))

    total = coded * parties  # wraps as a sum of so many would

    assert torch.allclose(
        code.decode(total),
        parties * torch.tensor([sign * scale, 0.0, scale / 3], dtype=torch.float64),
        atol=parties * code.step / 2,
        rtol=1e-12,
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([32, 64]), st.integers(1, 50))
def test_a_sum_is_right_to_half_a_step_per_party(seed, bits, parties):
    x = torch.from_numpy(np.random.default_rng(seed).uniform(-2, 2, (parties, 7)))
    code = FixedPoint(2.0, parties, bits)

    total = code.encode(x).sum(dim=0, dtype=code.dtype)

    assert (code.decode(total) - x.sum(dim=0)).abs().max() <= parties * code.step * 0.5001 + 1e-12


@pytest.mark.parametrize("bad", [8.001, -9.0, float("nan"), float("inf"), -float("inf")])
def test_a_number_beyond_the_range_is_refused(bad):
    with pytest.raises(ArchipelError, match=r"an upload is .* beyond range = 8 .* clip it, or"):
        FixedPoint(8.0, 4).encode(torch.tensor([0.0, bad, 1.0]), "an upload")


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"bits": 16}, "bits = 16: give 32 or 64"),
        ({"range": 0.0}, "range = 0.0: give a number above 0"),
        ({"range": float("nan")}, "range = nan"),
        ({"parties": 1 << 31}, "are too many for sums modulo 2"),
    ],
)
def test_a_code_that_cannot_be_is_refused(fields, says):
    with pytest.raises(ArchipelError, match=says):
        FixedPoint(**{"range": 1.0, "parties": 2, **fields})


# -- neighbours ------------------------------------------------------------------------------------

CURIOUS = {  # (colluding, dropouts): n -> (degree, threshold), the server follows the protocol
    (0.1, 0.1): {20: (6, 3), 50: (12, 6), 100: (22, 11), 1000: (48, 27), 10**4: (54, 31)},
    (0.2, 0.2): {100: (40, 21), 1000: (98, 54), 10**4: (122, 67)},
    (0.33, 0.05): {1000: (78, 60)},
    (0.33, 0.33): {10: (8, 4), 100: (68, 34), 1000: (286, 150)},
    (0.45, 0.45): {100: (92, 46)},
}
LIES = {
    (0.1, 0.1): {20: (8, 6), 100: (32, 22), 1000: (96, 67)},
    (0.2, 0.2): {1000: (302, 206)},
    (0.3, 0.3): {100: (92, 62)},
}


@pytest.mark.parametrize("lies, table", [(False, CURIOUS), (True, LIES)])
def test_degree_and_threshold_are_the_golden_ones(lies, table):
    for (gamma, delta), rows in table.items():
        for n, wanted in rows.items():
            assert of_some(n, gamma, delta, lies)[:2] == wanted, (n, gamma, delta)


@pytest.mark.parametrize("n", range(1, 41))
def test_no_server_gets_two_sets_of_shares_of_the_complete_graph(n):
    degree, threshold, _, complete = of_all(n)
    colluding = -(-n // 3) - 1  # fewer than a third

    assert complete and degree == n and 1 <= threshold <= n
    assert 2 * threshold > n + colluding


@pytest.mark.parametrize("n, gamma, delta", [(50, 0.1, 0.1), (100, 0.2, 0.2), (1000, 0.1, 0.1)])
def test_no_server_gets_two_sets_of_shares_of_a_sparse_graph(n, gamma, delta):
    degree, threshold, masked, _ = of_some(n, gamma, delta)
    most = stats.hypergeom(n, int(gamma * n), degree).isf(2.0**-40 / n)  # on the server's side

    assert 2 * threshold > degree + most
    assert masked == degree or apart(n, masked, 2 * int(gamma * n)) < 2.0**-40


def test_shares_that_leave_no_threshold_are_refused():
    with pytest.raises(ArchipelError, match=r"colluding = 0.5 and dropouts = 0.3: no threshold"):
        of_some(100, 0.5, 0.3)


def test_who_draws_its_own_neighbours_is_connected_where_a_ring_is():
    for n, share in ((30, 0.1), (100, 0.1), (100, 0.2), (1000, 0.1), (1000, 0.3)):
        removed = 2 * int(share * n)
        k = next(k for k in range(2, n, 2) if connected(n, k, removed))
        assert apart(n, k, removed) < 2.0**-40


def test_parties_fall_apart_as_rarely_as_the_bound_says():
    """At a size where it happens: 30 parties, half of which are gone, and four draws each."""
    n, k, removed, trials = 30, 4, 15, 100_000
    draw, stay = np.random.default_rng(3), 15
    edges = np.zeros((trials, stay, stay), bool)
    for u in range(stay):
        order = np.argsort(draw.random((trials, n - 1)), axis=1)[:, :k]
        drawn = order + (order >= u)  # not itself
        for j in range(k):
            hit = np.flatnonzero(drawn[:, j] < stay)
            edges[hit, u, drawn[hit, j]] = edges[hit, drawn[hit, j], u] = True
    reached = np.zeros((trials, stay), bool)
    reached[:, 0] = True
    for _ in range(stay):
        reached |= (edges & reached[:, :, None]).any(axis=1)
    rate, bound = float((~reached.all(axis=1)).mean()), apart(n, k, removed)

    assert rate <= bound + 3 * np.sqrt(bound / trials)
    assert rate > bound / 2  # the bound is no fiction
