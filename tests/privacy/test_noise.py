"""Noise has the distribution it should have, and its low-order bits tell nothing."""

import os
from decimal import Decimal
from math import ceil, frexp, inf, ldexp, nan, sqrt

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chi2, kstest, norm

from archipel import rng
from archipel.errors import ArchipelError
from archipel.privacy import grid, noise, tables
from archipel.privacy.sources import Keystream, Simulated, System, secret

ALPHA = 1e-4
KEY = bytes(range(32))


def stream(name="test"):
    """Words that are the same in every run of a test, from the cipher that protects people."""
    return secret(KEY, name)


def words(source, count):
    """The next words of a source of one party."""
    return source.words(np.array([count]))


def fits(observed, chances):
    """Whether counts fit chances, by chi-square; what is expected less than 10 times is pooled."""
    expected = observed.sum() * np.asarray(chances, float)
    rare = expected < 10
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 10:  # too few for a cell of their own
        observed[-2] += observed[-1]
        expected[-2] += expected[-1]
        observed, expected = observed[:-1], expected[:-1]
    statistic = ((observed - expected) ** 2 / expected).sum()
    return chi2.sf(statistic, len(expected) - 1) > ALPHA


def counts(integers, reach):
    return np.bincount(np.clip(integers, -reach, reach) + reach, minlength=2 * reach + 1)


# -- sources ---------------------------------------------------------------------------------------


def test_a_keystream_is_aes_256_in_counter_mode():
    first = words(Keystream(bytes(32)), 2)

    assert first.astype("<u8").tobytes().hex() == "dc95c078a2408989ad48a21492842087"  # NIST AESAVS


@given(st.lists(st.integers(0, 100), max_size=6))
def test_a_stream_goes_on_where_it_was(lengths):
    whole, parts = stream(), stream()

    drawn = [np.empty(0, np.uint64), *(words(parts, length) for length in lengths)]

    assert (np.concatenate(drawn) == words(whole, sum(lengths))).all()


def test_long_draws_are_one_stream():
    whole, parts = stream(), stream()

    assert (words(whole, 100_001) == np.concatenate([words(parts, 1), words(parts, 100_000)])).all()


def test_the_same_secret_and_purpose_draw_the_same_and_others_do_not():
    def first(key, purpose):
        return words(secret(key, purpose), 8).tobytes()

    others = [first(KEY, "other"), first(bytes(32), "noise"), words(Keystream(KEY), 8).tobytes()]

    assert first(KEY, "noise") == first(KEY, b"noise")
    assert len({first(KEY, "noise"), *others}) == 4


def test_the_systems_words_are_new_each_time():
    one, other = System(), System()

    drawn = {words(source, 4).tobytes() for source in (one, other, one, other)}

    assert len(drawn) == 4


def test_a_forked_process_draws_other_noise():
    source = System()
    words(source, 1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, words(source, 4).tobytes())
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(reading, 32) != words(source, 4).tobytes()


def test_simulated_words_are_of_seed_round_party_and_purpose():
    def first(*key):
        return words(Simulated(*key), 8).tobytes()

    keys = [(1, 2, (3,), "a"), (2, 2, (3,), "a"), (1, 3, (3,), "a"), (1, 2, (4,), "a")]
    keys.append((1, 2, (3,), "b"))
    source = Simulated(*keys[0])

    assert words(source, 8).tobytes() == first(*keys[0]) != words(source, 8).tobytes()
    assert len({first(*key) for key in keys}) == len(keys)


def test_only_a_simulation_says_that_it_hides_nothing():
    assert System().protects and stream().protects and Keystream(KEY).protects
    assert not Simulated(0, 0, [0], "noise").protects


@pytest.mark.parametrize("source", [stream(), Simulated(0, 1, [2], "noise")], ids=["aes", "seed"])
def test_words_are_uniform(source):
    each = words(source, 125_000).view(np.uint8)

    assert fits(np.bincount(each, minlength=256), np.full(256, 1 / 256))


@pytest.mark.parametrize(
    "one, other",
    [
        (secret(KEY, "a"), secret(KEY, "b")),
        (secret(KEY, "a"), secret(bytes(32), "a")),
        (Simulated(0, 1, [2], "a"), Simulated(0, 1, [3], "a")),
        (Simulated(0, 1, [2], "a"), Simulated(0, 2, [2], "a")),
    ],
)
def test_streams_are_independent(one, other):
    bits = np.unpackbits((words(one, 20_000) ^ words(other, 20_000)).view(np.uint8))

    equal = int((bits == 0).sum())
    assert ALPHA / 2 < binom.cdf(equal, len(bits), 0.5) < 1 - ALPHA / 2


def many(kind):
    """Three parties in one source, and each of them in a source of its own."""
    keys = [bytes([k] * 32) for k in range(3)]
    if kind == "seed":
        return Simulated(0, 1, range(3), "a"), [Simulated(0, 1, [k], "a") for k in range(3)]
    return secret(keys, "a"), [secret(key, "a") for key in keys]


@pytest.mark.parametrize("kind", ["aes", "seed"])
@given(st.lists(st.tuples(*[st.integers(0, 9)] * 3), max_size=5))
def test_what_a_party_is_given_does_not_depend_on_the_others(kind, asked):
    together, alone = many(kind)

    for counts in asked:
        drawn = [one.words(np.array([k])) for one, k in zip(alone, counts, strict=True) if k]
        expected = np.concatenate([np.empty(0, np.uint64), *drawn])
        assert (together.words(np.array(counts)) == expected).all()


def test_the_systems_words_are_as_many_as_all_parties_ask_for():
    assert len(System(3).words(np.array([4, 0, 5]))) == 9


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33)])
def test_keys_of_another_length_are_refused(key):
    with pytest.raises(ArchipelError, match="32 secret bytes"):
        Keystream(key)
    with pytest.raises(ArchipelError, match="32 secret bytes"):
        secret(key, "noise")


# -- tables ----------------------------------------------------------------------------------------


def chances_of(table):
    """What a table draws, number by number, of 2^128: exact."""
    size = (1 << 128) >> table.bits
    drawn = [0] * (1 << table.bits)
    for k, (high, low, other) in enumerate(
        zip(table.high.tolist(), table.low.tolist(), table.other.tolist(), strict=True)
    ):
        own = (high << 64) + low
        assert 0 <= own <= size
        drawn[k] += own
        drawn[other] += size - own
    return drawn


@given(st.lists(st.integers(0, 10**30), min_size=1, max_size=40).filter(any))
@example([0, 3, 3, 3])
def test_a_table_draws_exactly_its_weights(weights):
    parts = tables.weighed([Decimal(weight) for weight in weights])

    drawn = chances_of(tables.alias(parts))

    assert drawn[: len(parts)] == parts and not any(drawn[len(parts) :])
    assert sum(parts) == 1 << 128
    assert all(part == 0 for part, weight in zip(parts, weights, strict=True) if weight == 0)
    exact = [(weight << 128) // sum(weights) for weight in weights]
    assert all(abs(part - low) <= len(parts) + 1 for part, low in zip(parts, exact, strict=True))


class Scripted:
    """A source whose words are known."""

    protects, parties = False, 1

    def __init__(self, *words):
        self.left = list(words)

    def words(self, counts):
        drawn, self.left = self.left[: counts[0]], self.left[counts[0] :]
        return np.array(drawn, np.uint64)


@pytest.mark.parametrize("second, expected", [(0, 0), (41, 0), (42, 1), (2**64 - 1, 1)])
def test_a_second_word_decides_where_the_first_does_not(second, expected):
    part = (7 << 64) + 42
    table = tables.alias([part, (1 << 128) - part])

    drawn = tables.pick(table, Scripted(6, 7, 8, second), np.array([3]))

    assert drawn.tolist() == [0, expected, 1]


# -- integers --------------------------------------------------------------------------------------


def falling(power, scale):
    def density(k):
        z = abs(mpmath.mpf(k)) / mpmath.mpf(scale)
        return mpmath.exp(-(z**power) / power)

    return density


def skellam(variance):
    return lambda k: mpmath.besseli(k, mpmath.mpf(variance))


PLAIN = [
    *((noise._strips(2, sigma), falling(2, sigma)) for sigma in (1e-9, 0.2, 1.0, 10.0, 100.7)),
    *((noise._strips(1, scale), falling(1, scale)) for scale in (1e-9, 0.1, 1.0, 30.3)),
    *((noise._skellam(v), skellam(v)) for v in (1e-9, 0.1, 1.0, 100.0, 1234.5)),
]


@pytest.mark.parametrize("strips, density", PLAIN)
def test_tables_of_integers_are_right_to_2_to_the_minus_100(strips, density):
    drawn = chances_of(strips.table)

    with mpmath.workdps(60):
        weights = [density(k) for k in range(len(drawn))]
        total = mpmath.fsum(weights)
        beyond = density(len(drawn)) / total  # the first that a table leaves out
        apart = mpmath.fsum(
            abs(mpmath.mpf(part) / 2**128 - weight / total)
            for part, weight in zip(drawn, weights, strict=True)
        )
        assert beyond < mpmath.mpf(2) ** -105
        assert apart / 2 < mpmath.mpf(2) ** -105


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("scale", [1000.0, 1.0001 * 2**20, 2.0**32, 1.37 * 2**32, 2.0**33 - 1])
def test_chances_to_be_kept_are_right_to_the_factor_that_is_counted(power, scale):
    strips = noise._strips(power, scale)
    mantissa, exponent = frexp(scale)
    wide = ldexp(ceil(ldexp(mantissa, 7)), exponent - 7)  # whose table it is
    reach = int(scale * (power * 110 * np.log(2)) ** (1 / power)) >> strips.shift
    draw = rng.generator(0, "strips", power, int(scale))
    strip = np.append(draw.integers(0, reach, 500), [0, reach])
    inside = np.append(draw.integers(0, 1 << strips.shift, 500), [0, (1 << strips.shift) - 1])

    kept = noise._keeping(strips, strip, inside)

    with mpmath.workdps(60):
        for k, h, part in zip(kept, strip.tolist(), inside.tolist(), strict=True):
            start = h << strips.shift
            exact = falling(power, scale)(start + part) / falling(power, wide)(start)
            assert exact <= 1
            assert abs(mpmath.mpf(float(k)) / exact - 1) < noise.CLOSE
            assert strips.sure[h] <= exact * 2 ** (63 - strips.shift)


DRAWN = [
    *(
        (noise.discrete_gaussian, sigma, lambda k, s=sigma: np.exp(-((k / s) ** 2) / 2))
        for sigma in (0.3, 1.0, 10.0, 511.0, 700.0)
    ),
    *(
        (noise.discrete_laplace, scale, lambda k, s=scale: np.exp(-np.abs(k) / s))
        for scale in (0.3, 2.0, 127.0, 300.0)
    ),
    *(
        (noise.skellam, v, lambda k, v=v: np.vectorize(lambda n: float(skellam(v)(n)))(abs(k)))
        for v in (0.3, 4.0, 90.0)
    ),
]


@pytest.mark.parametrize("draw, scale, density", DRAWN)
def test_integers_have_their_distribution(draw, scale, density):
    drawn = draw(stream(f"{draw.__name__} {scale}"), scale, 300_000)[0]

    reach = int(np.abs(drawn).max()) + 1
    chances = density(np.arange(-reach, reach + 1))
    chances = chances / chances.sum()
    assert fits(counts(drawn, reach), chances)
    mean, variance = 0.0, float((chances * np.arange(-reach, reach + 1) ** 2).sum())
    fourth = float((chances * np.arange(-reach, reach + 1.0) ** 4).sum())
    z = norm.isf(ALPHA / 2)
    assert abs(drawn.mean() - mean) < z * sqrt(variance / len(drawn))
    assert abs((drawn**2.0).mean() - variance) < z * sqrt((fourth - variance**2) / len(drawn))


@pytest.mark.parametrize("variance", [1e6, 1e9])
def test_wide_skellam_noise_is_nearly_normal(variance):
    drawn = noise.skellam(stream(), variance, 200_000)[0]

    spread = rng.generator(0, "jitter").uniform(-0.5, 0.5, len(drawn))
    assert kstest((drawn + spread) / sqrt(variance), "norm").pvalue > ALPHA


@pytest.mark.parametrize("scale", [2.0**32, 1.37 * 2**32, 2.0**33 - 1])
def test_noise_in_strips_has_its_distribution_and_uniform_low_bits(scale):
    normal = noise.discrete_gaussian(stream("wide"), scale, 500_000)[0]
    twosided = noise.discrete_laplace(stream("wide"), scale, 500_000)[0]

    assert kstest(normal / scale, "norm").pvalue > ALPHA
    assert kstest(twosided / scale, "laplace").pvalue > ALPHA
    for drawn in (normal, twosided):
        assert fits(np.bincount(drawn & 255, minlength=256), np.full(256, 1 / 256))
        tails = [int((drawn > 0).sum()), int((drawn < 0).sum())]
        assert fits(np.array(tails), [0.5, 0.5])


def test_the_ends_of_strips_are_as_likely_as_they_should_be():
    scale = 1.3 * 2**20  # 2^14 integers in a strip
    drawn = np.abs(noise.discrete_gaussian(stream(), scale, 1_000_000)[0])

    inside = (drawn & ((1 << 14) - 1)) >> 11  # which eighth of its strip
    fine = np.arange(0, 14 * scale, 1 << 11)
    chances = np.diff(norm.cdf(np.append(fine, inf) / scale)).copy()
    eighths = np.bincount(np.arange(len(fine)) & 7, chances, 8)
    assert fits(np.bincount(inside, minlength=8), eighths / eighths.sum())
    assert not fits(np.bincount(inside, minlength=8), eighths[::-1] / eighths.sum())  # has power


def test_shares_of_skellam_noise_add_up():
    shares = noise.skellam(secret([bytes([k] * 32) for k in range(4)], "share"), 3.0, 200_000)

    reach = 30
    chances = np.array([float(skellam(12.0)(abs(k))) for k in range(-reach, reach + 1)])
    assert fits(counts(shares.sum(0), reach), chances / chances.sum())


@pytest.mark.parametrize("kind", ["aes", "seed"])
@pytest.mark.parametrize("count", [0, 1, 7, 5000, noise._BLOCK, noise._BLOCK + 1, 40_000])
def test_a_stack_draws_as_each_party_would_alone(kind, count):
    together, alone = many(kind)

    for scale in (0.5, 1.3 * 2**32):  # a second draw goes on where the first one ended
        drawn = noise.discrete_gaussian(together, scale, count)
        each = [noise.discrete_gaussian(one, scale, count)[0] for one in alone]

        assert drawn.shape == (3, count)
        assert (drawn == np.stack(each)).all()


# -- a choice by scores ----------------------------------------------------------------------------


@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=9),
    st.floats(0.01, 20),
    st.floats(0.1, 10),
)
@settings(max_examples=50)
def test_choices_have_exactly_their_chances(scores, epsilon, sensitivity):
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "pick", lambda table, *_: seen.append(table) or np.zeros(1, int))
        noise.exponential(stream(), scores, epsilon, sensitivity)

    drawn = chances_of(seen[0])
    with mpmath.workdps(60):
        rate = mpmath.mpf(epsilon) / (2 * mpmath.mpf(sensitivity))
        weights = [mpmath.exp(rate * mpmath.mpf(score)) for score in scores]
        for part, weight in zip(drawn, weights, strict=False):
            exact = weight / mpmath.fsum(weights)
            assert abs(mpmath.mpf(part) / 2**128 - exact) < mpmath.mpf(2) ** -120


def test_choices_occur_as_often_as_they_should():
    scores = [0.0, 1.0, 2.0, 3.0, 3.0, -40.0]

    chosen = noise.exponential(stream(), scores, 1.5, 1.0, 300_000)[0]

    weights = np.exp(1.5 * np.array(scores) / 2)
    assert fits(np.bincount(chosen, minlength=6), weights / weights.sum())


@pytest.mark.parametrize(
    "scores, expected",
    [([7.0], {0}), ([1e308, -1e308, 0.0], {0}), ([-1e308, -1e308], {0, 1}), ([0, 1e-320], {0, 1})],
)
def test_extreme_scores_do_not_overflow(scores, expected):
    assert set(noise.exponential(stream(), scores, 1.0, 1.0, 100)[0].tolist()) == expected


@pytest.mark.parametrize("scores", [[], [nan], [1.0, inf], [-inf]])
def test_scores_that_are_none_are_refused(scores):
    with pytest.raises(ArchipelError, match="one finite score per choice"):
        noise.exponential(stream(), scores, 1.0, 1.0)


# -- a grid ----------------------------------------------------------------------------------------

SCALES = st.floats(1e-30, 1e30)


@given(SCALES)
def test_a_grid_is_a_power_of_two_and_of_the_scale_alone(scale):
    step = grid.grid(scale)

    assert frexp(step)[0] == 0.5
    assert 2**32 <= scale / step < 2**33


@given(st.lists(st.floats(width=64, allow_nan=False, allow_infinity=False), min_size=1), SCALES)
def test_what_leaves_lies_on_the_grid_whatever_the_value(values, sigma):
    step = grid.grid(sigma)

    out = grid.gaussian(torch.tensor(values, dtype=torch.float64), sigma, stream())

    steps = out / step
    assert torch.equal(steps, steps.round())
    assert steps.abs().max() < 2**62 + 2**38


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_result_is_a_function_of_the_integers_alone(dtype):
    """Values that round to the same point of the grid give the same result with the same noise."""
    step, base = grid.grid(1.0), torch.arange(1000.0, dtype=torch.float64) / 8
    moved = base + step * torch.linspace(-0.49, 0.49, 1000, dtype=torch.float64)

    one = grid.gaussian(base.to(dtype), 1.0, stream())
    other = grid.gaussian(moved.to(dtype), 1.0, stream())

    assert not torch.equal(base, moved)
    assert torch.equal(one, other) and one.dtype is dtype


def impossible_for_1(outputs):
    """The attack: numbers near 0 that 1 + noise in double precision cannot be.

    A sum of 1 and a number has no bits below 2^-53, so an output with such bits is none of x = 1.
    """
    near = outputs[np.abs(outputs) < 0.25]
    return int((near * 2.0**53 % 1 != 0).sum()), len(near)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_low_order_bits_tell_neighbours_apart_by_naive_noise_and_not_by_ours(sigma):
    size = 100_000
    naive = {x: x + sigma * rng.generator(0, x).standard_normal(size) for x in (0, 1)}
    ours = {
        x: grid.gaussian(torch.full((size,), float(x)).double(), sigma, stream(f"{x}")).numpy()
        for x in (0, 1)
    }

    told, near = impossible_for_1(naive[0])
    assert told > near / 2 > 0  # the attack is right about most outputs near 0, ...
    assert impossible_for_1(naive[1])[0] == 0  # ... and never wrong
    assert impossible_for_1(ours[0])[0] == impossible_for_1(ours[1])[0] == 0
    step = grid.grid(sigma)
    low = {x: (ours[x] / step).astype(np.int64) & 255 for x in (0, 1)}
    for x in (0, 1):  # and what bits there are, are as likely
        assert fits(np.bincount(low[x], minlength=256), np.full(256, 1 / 256))


def test_supports_of_neighbours_are_the_same_with_coarse_noise():
    """Every integer that neighbours' outputs can be is possible for both: P > 0 on a stretch."""
    drawn = {x: set(x + noise.discrete_gaussian(stream(f"{x}"), 2.0, 100_000)[0]) for x in (0, 1)}

    assert set(range(-6, 8)) <= drawn[0] & drawn[1]


def test_noise_on_a_grid_is_unbiased_and_as_wide_as_it_says():
    values = torch.linspace(-3, 3, 400_000, dtype=torch.float64)
    for add, variance, fourth in ((grid.gaussian, 1.0, 3.0), (grid.laplace, 2.0, 24.0)):
        error = (add(values, 0.7, stream(add.__name__)) - values) / 0.7

        z, n = norm.isf(ALPHA / 2), len(values)
        assert abs(float(error.mean())) < z * sqrt(variance / n)
        assert abs(float(error.square().mean()) - variance) < z * sqrt((fourth - variance**2) / n)
        assert abs(float((error * values).mean())) < z * sqrt(3 * variance / n)


@pytest.mark.parametrize("p", [4, 20_000])
def test_rows_of_a_stack_draw_as_each_would_alone_and_a_sweep_draws_alike(p):
    values = torch.arange(6 * p, dtype=torch.float64).view(2, 3, p).transpose(0, 1).contiguous()
    values = values.transpose(0, 1)  # not as it lies in memory
    source = Simulated(0, 1, range(3), "noise")

    stacked = grid.gaussian(values, 2.0, source)

    alone = [grid.gaussian(values[0, k], 2.0, Simulated(0, 1, [k], "noise")) for k in range(3)]
    assert torch.equal(stacked[0], torch.stack(alone))
    drawn = stacked - values
    assert torch.equal(drawn[0], drawn[1])
    assert len(set(drawn[0].flatten().tolist())) > 2.9 * p


@pytest.mark.parametrize("shape, parties", [((2, 3), 1), ((3,), 2), ((1, 2, 3), 3), ((), 1)])
def test_sources_that_do_not_match_are_refused(shape, parties):
    with pytest.raises(ArchipelError, match=r"or \[..., m, p\] of m"):
        grid.gaussian(torch.zeros(shape), 1.0, System(parties))


def test_no_values_take_no_noise():
    assert grid.gaussian(torch.zeros(0), 1.0, stream()).shape == (0,)
    assert grid.gaussian(torch.zeros(0, 5), 1.0, System(0)).shape == (0, 5)
    assert grid.gaussian(torch.zeros(0, 1, 5), 1.0, stream()).shape == (0, 1, 5)


@pytest.mark.parametrize("value", [1e300, 1e12, torch.finfo(torch.float64).max])
def test_values_beyond_the_grid_stay_at_its_end(value):
    values = torch.tensor([value, -value], dtype=torch.float64)

    out = grid.gaussian(values, 1.0, stream())

    end = 2.0**62 * grid.grid(1.0)
    assert torch.equal(out.sign(), values.sign())
    assert ((out.abs() - end).abs() < 20).all()


def test_large_values_within_the_grid_are_right():
    values = torch.tensor([1e8, -123456789.0, 2.0**29], dtype=torch.float64)

    assert ((grid.gaussian(values, 1.0, stream()) - values).abs() < 8).all()


@given(st.floats(-1e25, 1e25), st.floats(-1e25, 1e25), SCALES)
def test_rounding_moves_neighbours_no_further_apart_than_is_counted(one, other, scale):
    step = grid.grid(scale)

    steps = grid.rounded(torch.tensor([one, other], dtype=torch.float64), step).tolist()

    assert abs(steps[0] - steps[1]) * step <= grid.widened(abs(one - other), step, 1) * (1 + 1e-15)


def test_what_rounding_and_sampling_add():
    assert grid.widened(1.0, 0.25, 16) == 2.0
    assert grid.widened(1.0, 0.25, 16, norm=1) == 5.0
    epsilon, delta = grid.counted(2.0, 1e-6, 10**9)
    assert 0 < epsilon - 2.0 < 1e-5
    assert 0 < delta - 1e-6 < 1e-11
    assert grid.counted(500.0, 1e-6, 1)[1] == 1.0  # e^500 of what is left out is no promise


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_values_that_are_not_finite_are_refused(bad):
    with pytest.raises(ArchipelError, match="not finite; clip them"):
        grid.gaussian(torch.tensor([0.0, bad]), 1.0, stream())


def test_integers_are_not_put_on_a_grid():
    with pytest.raises(ArchipelError, match="DiscreteGaussian and Skellam"):
        grid.laplace(torch.tensor([1, 2]), 1.0, stream())


@pytest.mark.parametrize("bad", [0.0, -1.0, nan, inf, -inf, 1e-300, 1e300])
def test_scales_that_cannot_be_are_refused(bad):
    for draw in (noise.discrete_gaussian, noise.discrete_laplace, noise.skellam):
        with pytest.raises(ArchipelError, match="give a finite number above 0"):
            draw(stream(), bad, 1)
    for add in (grid.gaussian, grid.laplace):
        with pytest.raises(ArchipelError, match="give a finite number above 0"):
            add(torch.zeros(1), bad, stream())


def test_noise_wider_than_tables_is_refused():
    with pytest.raises(ArchipelError, match="coarser grid"):
        noise.skellam(stream(), 1e12, 1)
    with pytest.raises(ArchipelError, match="coarser grid"):
        noise.discrete_gaussian(stream(), 2.0**46, 1)
