"""Secure aggregation: the exact sum whoever is lost, nothing to be seen of one party, no lie."""

import numpy as np
import pytest
import torch
from scipy import stats

from aggregation.protocol import MESSAGES, Me, play, terms
from archipel.aggregation import SUMS, shamir
from archipel.aggregation.coding import Terms
from archipel.aggregation.keys import Session, unseal
from archipel.aggregation.neighbours import Unsafe, apart
from archipel.aggregation.others import Simulated
from archipel.aggregation.roster import (
    ADVERTISED,
    OwnKeys,
    Refusal,
    Roster,
    said_of,
    survivors_of,
)
from archipel.aggregation.secure import SecureSum
from archipel.errors import ArchipelError, BelowQuorum
from archipel.signing import verify

ALPHA = 1e-4
HOW, SPARSE = SecureSum(), SecureSum(degree=8, threshold=0.67)


def integers(how, xs, among):
    """The plain sum of the integers of some parties, decoded."""
    code, form = how.coding(len(xs)), next(iter(xs.values()))
    coded = [code.encode(xs[k], ()).numpy() for k in among]
    total = torch.from_numpy(np.sum(coded, axis=0, dtype=coded[0].dtype))
    return code.decode(total, form)


def uploads(draw, ids, d=9, scale=16.0):
    return {k: terms(torch.from_numpy(draw.uniform(-scale, scale, d))) for k in ids}


# -- the sum ---------------------------------------------------------------------------------------


def test_it_is_bundled():
    assert SUMS["secure"] is SecureSum


@pytest.mark.parametrize("part", range(8))
def test_it_is_the_sum_of_the_integers_whoever_is_lost_and_when(part):
    """Two hundred rounds of up to thirty parties, who are lost after any message."""
    draw, unmasked = np.random.default_rng(part), 0
    for t in range(25):
        n = int(draw.integers(2, 31))
        how = SecureSum(bits=int(draw.choice([32, 64])), degree=[None, 8][int(n > 20)])
        ids = sorted(draw.choice(1000, n, replace=False).tolist())
        xs = uploads(draw, ids)
        lost = draw.choice(ids, int(draw.integers(0, n // 3 + 1)), replace=False)
        answers = {int(k): int(draw.integers(1, len(MESSAGES))) for k in lost}
        try:
            found = play(how, xs, answers=answers, t=t, number=part)
        except BelowQuorum:
            continue
        unmasked += 1
        stayed = [k for k in ids if answers.get(k, 5) > MESSAGES.index("masked")]
        assert found.present.tolist() == stayed
        assert torch.equal(found.sums[0], integers(how, xs, stayed)[0])
    assert unmasked >= 15


@pytest.mark.parametrize("n", [2, 3, 4, 7, 12, 20])
@pytest.mark.parametrize("stage", [1, 2, 3, 4])
def test_as_many_as_the_threshold_allows_may_be_lost_at_any_stage(n, stage):
    how, xs = SecureSum(), uploads(np.random.default_rng(n), range(n))
    spare = n - how.neighbours(n).threshold

    found = play(how, xs, answers=dict.fromkeys(range(spare), stage))

    stayed = range(spare if stage <= 2 else 0, n)
    assert torch.equal(found.sums[0], integers(how, xs, stayed)[0])


@pytest.mark.parametrize("n", [2, 4, 12])
@pytest.mark.parametrize("stage", [1, 2, 3, 4])
def test_one_more_and_the_round_changes_nothing(n, stage):
    how, xs = SecureSum(), uploads(np.random.default_rng(n), range(n))
    lost = n - how.neighbours(n).threshold + 1

    with pytest.raises(BelowQuorum, match=r"and .* are needed|told their shares"):
        play(how, xs, answers=dict.fromkeys(range(lost), stage))


def test_a_sum_of_one_is_none():
    with pytest.raises(BelowQuorum, match="a sum of one party is what that party sent"):
        play(SecureSum(), uploads(np.random.default_rng(1), [5]))


def test_means_by_examples_are_exact_in_n():
    draw = np.random.default_rng(4)
    n = {k: float(draw.integers(1, 60_000)) for k in range(6)}
    x = {k: torch.from_numpy(draw.uniform(-16, 16, 5)) for k in n}
    xs = {
        k: Terms((x[k],), (x[k] * n[k],), (torch.tensor([n[k]], dtype=torch.float64),)) for k in n
    }

    plain, weighted, count = play(SecureSum(), xs).sums

    assert float(count) == sum(n.values())
    grid = SecureSum().coding(6)
    assert (plain - sum(x.values())).abs().max() <= 3.001 * grid.uploads.step
    wanted = sum(x[k] * n[k] for k in n)
    assert (weighted - wanted).abs().max() <= 3.001 * grid.by_examples.step


def test_a_number_that_does_not_fit_is_refused_and_not_added_up():
    xs = uploads(np.random.default_rng(1), range(3))
    with pytest.raises(ArchipelError, match=r"is 17 in absolute value, beyond range = 16 .* clip"):
        play(SecureSum(), {**xs, 1: terms(torch.full((9,), 17.0))})
    many = Terms((), (torch.zeros(2),), (torch.tensor([70_000.0]),))
    with pytest.raises(ArchipelError, match=r"has 70000 examples, more than examples = 65536"):
        play(SecureSum(), dict.fromkeys(range(3), many))


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"threshold": 0.66}, r"threshold = 0.66: give a share from 2/3 to 1 and above .* = 0.55"),
        ({"threshold": 0.7, "colluding": 0.4}, r"threshold = 0.7: .* above .* = 0.7, or leave"),
        ({"threshold": 1.5}, "threshold = 1.5: give a share from 2/3 to 1"),
        ({"degree": 1}, "degree = 1: give at least 2"),
        ({"bits": 16}, "bits = 16: give 32 or 64"),
        ({"range": -1.0}, "range = -1.0: give a number above 0"),
        ({"examples": 0}, "examples = 0: give a number from 1"),
        ({"examples": 2**31}, "do not fit 32 bits: give fewer, or bits=64"),
        ({"colluding": 0.5}, "colluding = 0.5: give a share from 0"),
        ({"dropouts": -0.1}, "dropouts = -0.1: give a share from 0"),
    ],
)
def test_fields_that_cannot_work_are_refused(fields, says):
    with pytest.raises(ArchipelError, match=says):
        SecureSum(**fields)


@pytest.mark.parametrize("n", [2, 5, 20, 21, 40, 100])
@pytest.mark.parametrize("how", [SecureSum(), SecureSum(degree=12), SecureSum(threshold=0.7)])
def test_the_threshold_leaves_no_server_two_sets_of_shares(how, n):
    degree, threshold, masked, _ = how.neighbours(n)

    assert 2 * threshold > degree
    assert threshold <= degree <= n and masked <= degree


@pytest.mark.parametrize("colluding", [0.0, 0.1, 0.3, 1 / 3, 0.4, 0.49])
@pytest.mark.parametrize("threshold", [None, 2 / 3, 0.67, 0.701, 0.75, 1.0])
def test_no_threshold_of_a_study_is_below_what_a_lying_server_would_need(colluding, threshold):
    """Among all: 2t > n + c for c below n/3, and for all who may collude."""
    if threshold is not None and threshold <= (1 + colluding) / 2:
        return
    how = SecureSum(threshold=threshold, colluding=colluding)
    for n in range(2, 21):
        degree, t, *_ = how.neighbours(n)
        assert degree == n >= t
        assert 2 * t > n + max(int(colluding * n), -(-n // 3) - 1)


@pytest.mark.parametrize(
    "fields, n, says",
    [
        ({"degree": 2}, 100, "degree = 2: too few neighbours for 100 parties.* at least 12, or"),
        ({"degree": 8}, 40, "degree = 8: too few neighbours for 40 parties.* at least 9, or"),
        ({"threshold": 0.67}, 1000, "threshold = 0.67: 65 of 96 .* at least 0.698, or leave"),
        ({"degree": 12, "threshold": 0.9}, 100, r"0.9: 11 of 12 neighbours .* at least 1, or"),
    ],
)
def test_a_sparse_graph_that_would_not_be_safe_is_refused_with_what_would_do(fields, n, says):
    with pytest.raises(Unsafe, match=says):
        SecureSum(**fields).neighbours(n)


def test_what_a_refusal_names_is_enough_and_one_less_is_not():
    for n in (21, 40, 64, 100):
        with pytest.raises(Unsafe) as no:
            SecureSum(degree=2).neighbours(n)
        least = int(str(no.value).split("at least ")[1].split(",")[0])
        found = SecureSum(degree=least).neighbours(n)
        most = stats.hypergeom(n, n // 10, least).isf(2.0**-41 / n)
        assert 2 * found.threshold > least + most
        assert apart(n, found.masked, 2 * (n // 10)) < 2.0**-41
        with pytest.raises(Unsafe):
            SecureSum(degree=least - 1).neighbours(n)


# -- what can be seen ------------------------------------------------------------------------------


def masked(xs, number=0, how=HOW, t=0):
    seen = []
    play(how, xs, seen=seen, number=number, t=t)
    return {k: said.numpy() for k, said in seen[2].items()}


def test_what_a_party_sends_is_uniform_whatever_it_hides():
    d = 250_000
    for level in (0.0, 16.0):
        sent = masked({k: terms(torch.full((d,), level)) for k in range(3)})
        for words in sent.values():
            for byte in words.view(np.uint8).reshape(d, 4).T:
                assert stats.chisquare(np.bincount(byte, minlength=256)).pvalue > ALPHA


def test_masked_words_of_nothing_and_of_the_largest_numbers_are_alike():
    d = 200_000
    low, high = (
        masked({k: terms(torch.full((d,), x)) for k in range(3)}, number=i)[0].view(np.uint32)
        for i, x in enumerate((0.0, 16.0))
    )
    assert stats.ks_2samp(low, high).pvalue > ALPHA


def test_two_rounds_with_the_same_sum_look_alike():
    """All that the server sees, of inputs that differ and have one sum: low bytes, low and high."""
    d, draw = 100_000, np.random.default_rng(2)
    one = {k: draw.uniform(-8, 8, d) for k in range(4)}
    other = {**one, 0: one[1], 1: one[0], 2: one[2] + 1.0, 3: one[3] - 1.0}
    counts = {}
    for name, xs in (("one", one), ("other", other)):
        sent = masked({k: terms(torch.from_numpy(x)) for k, x in xs.items()}, t=len(name))
        for k, words in sent.items():
            for at, byte in enumerate(words.view(np.uint8).reshape(d, 4).T):
                counts.setdefault((k, at), []).append(np.bincount(byte, minlength=256))
    for pair in counts.values():
        assert stats.chi2_contingency(np.array(pair)).pvalue > ALPHA


def test_no_two_messages_rounds_or_attempts_have_a_mask_in_common():
    xs = {k: terms(torch.zeros(4000)) for k in range(3)}
    sent = [masked(xs, number=number, t=t)[0].view(np.uint32) for number in (0, 1) for t in (0, 1)]
    for i, one in enumerate(sent):
        for other in sent[i + 1 :]:
            assert (one == other).sum() < 3


def test_a_share_opens_for_the_one_that_it_is_for():
    seen, how = [], SecureSum()
    play(how, uploads(np.random.default_rng(1), range(4)), seen=seen)
    sealed = {k: said[1] for k, said in seen[1].items()}

    roster = Roster(
        (torch.arange(4), torch.stack([*seen[0].values()])), Session(Me(0).others.session, 0, 0)
    )
    keys = [
        OwnKeys(
            *(
                bytes(Me(k).secret(f"{what} 0").numpy())
                for what in ("channel key", "mask key", "own mask", "draws")
            )
        )
        for k in range(4)
    ]
    opened = np.array(
        [
            [
                unseal(
                    keys[u].channel.agree(roster.channel(v), roster.session, "shares", (v, u)),
                    sealed[v][w].numpy().tobytes(),
                )
                is not None
                for w in range(4)
            ]
            for v in range(4)
            for u in range(4)
        ]
    ).reshape(4, 4, 4)
    assert (opened == np.eye(4, dtype=bool)).all()


# -- a server that lies ----------------------------------------------------------------------------


def refused(lie, says, n=6, how=HOW, mes=None, **options):
    """One party at least refuses, and says why."""
    xs = uploads(np.random.default_rng(n), range(n))
    with pytest.raises(Refusal, match=says):
        play(how, xs, lie=lie, mes=mes, **options)


def to(victims, step, change):
    """A lie to some parties, in the answer to one message."""
    return lambda at, k, reply: change(reply) if at == step and k in victims else reply


def test_another_key_for_a_party_is_refused_by_the_others():
    """The server puts itself in the place of party 2, with keys of its own."""

    def swapped(reply):
        ids, keys = reply
        keys = keys.clone()
        keys[2, :32] = keys[3, :32]
        return ids, keys

    refused(to([0], 0, swapped), "keys of party 2 are not signed, for this round")
    refused(to([2], 0, swapped), "other keys for this party than its own")


def test_a_signature_that_was_forged_is_refused():
    def forged(reply):
        ids, keys = reply
        keys = keys.clone()
        keys[4, -1] ^= 1
        return ids, keys

    refused(to([1], 0, forged), "keys of party 4 are not signed")


@pytest.mark.parametrize("before", [{"t": 0, "number": 1}, {"t": 1, "number": 0}])
def test_keys_of_another_round_or_message_are_refused(before):
    """Old keys, whose secrets may have been revealed since, signed by the right party."""
    old, n = [], 6
    play(SecureSum(), uploads(np.random.default_rng(1), range(n)), seen=old, **before)

    def replayed(reply):
        ids, keys = reply
        keys = keys.clone()
        keys[3] = old[0][3]
        return ids, keys

    refused(to([0], 0, replayed), "keys of party 3 are not signed, for this round", t=0, number=0)


def test_keys_of_another_attempt_are_refused():
    first = Simulated(3, 0)
    statement = said_of(Session(b"another attempt", 0, 0), 3, bytes(ADVERTISED))
    signed = first.sign(statement)

    here = said_of(Session(first.session, 0, 0), 3, bytes(ADVERTISED))
    assert not Simulated(1, 0).signed(3, signed, here)


def test_two_different_rosters_are_found_out():
    """Some are told of party 7, which is on the server's side, in place of party 5."""
    seven = Me(7)
    box = SecureSum().party(seven, terms(torch.zeros(9)), 0)
    row = next(box)

    def lie(step, k, reply):
        if k > 2:
            return reply
        if step == 0:
            ids, keys = reply[0].clone(), reply[1].clone()
            ids[5], keys[5] = 7, row
            return ids, keys
        if step in (1, 3):
            return (*(_instead(part) for part in reply[:-1]), reply[-1])
        return _instead(reply)

    refused(lie, "withholds the shares of 3 parties that shared theirs")  # says party 5
    refused(lambda step, k, reply: lie(step, k, reply) if step == 0 else reply, "party 5 among")


def _instead(ids):
    return torch.where(ids == 5, 7, ids)


def test_who_signs_who_stayed_signs_the_roster_too():
    sets = [(b"one roster", [0, 1, 2], [0, 1]), (b"another", [0, 1, 2], [0, 1])]
    sets += [(b"one roster", [0, 1, 3], [0, 1]), (b"one roster", [0, 1, 2], [0, 2])]
    said = {survivors_of(Session(b"", 0, 0, among), a, b) for among, a, b in sets}
    assert len(said) == len(sets)


def test_a_party_named_twice_is_refused():
    refused(to([0], 0, lambda reply: (reply[0][[0, 1, 1]], reply[1][[0, 1, 1]])), "a party twice")
    refused(to([0], 2, lambda reply: reply[[0, 1, 2, 3, 4, 4]]), "twice among those who stayed")


def test_a_shorter_list_of_neighbours_is_refused():
    def fewer(reply):
        shared, senders, sealed = reply
        return shared, senders[:4], sealed[:4]

    refused(to([0], 1, fewer), "withholds the shares of 2 parties that shared theirs")

    def alone(reply):
        shared, senders, sealed = reply
        return shared[:2], senders[:2], sealed[:2]

    refused(to([0], 1, alone), "2 of the 6 neighbours .* are left, and 5 are needed")


def test_a_party_left_out_of_a_set_is_refused_by_itself():
    refused(to([0], 1, lambda reply: tuple(part[1:] for part in reply)), "leaves this party out")
    refused(to([0], 2, lambda reply: reply[1:]), "this party did not stay")


def test_a_stranger_in_a_set_is_refused():
    def with_stranger(reply):
        return torch.cat([reply, torch.tensor([77])])

    refused(to([0], 2, with_stranger), "party 77 among those who stayed, and it was not one before")


def test_changed_survivors_are_refused_by_all_who_are_told_something_else():
    """Of party 5 the server wants both: its own mask of some, its key of the others."""
    refused(
        to([0, 1, 2], 2, lambda reply: reply[:5]), "signed the same set of those who stayed, and 5"
    )


def test_nobody_reveals_both_shares_of_anybody():
    """By the form of what is told: one row for each, and a server cannot ask for another set."""
    seen, how = [], SecureSum()
    play(how, uploads(np.random.default_rng(1), range(5)), seen=seen, answers={4: 2})

    for told in seen[4].values():
        assert told.shape == (5, 1 + shamir.SHARE)


def test_too_few_signatures_are_refused_and_forged_ones_do_not_count():
    def some(reply):
        signers, signatures = reply
        return signers[:4], signatures[:4]

    def forged(reply):
        signers, signatures = reply
        return signers, signatures.flip(0)

    refused(to([0], 3, some), "4 of this party's neighbours signed the same")
    refused(to([0], 3, forged), "0 of this party's neighbours signed the same")


def test_one_signature_many_times_counts_once():
    def repeated(reply):
        return reply[0][[1] * 6], reply[1][[1] * 6]

    refused(to([0], 3, repeated), "a party twice among those who signed")


@pytest.mark.parametrize("step, what", [(0, "take part"), (2, "stayed")])
def test_a_sum_of_fewer_than_a_site_wants_is_refused(step, what):
    """A site's own policy, whatever the study and the server say."""
    n = 6
    mes = {k: Me(k, least=7 if step == 0 and k == 2 else 5 if k == 2 else 0) for k in range(n)}
    answers = {} if step == 0 else {0: 2, 5: 2}
    refused(
        None, rf"parties {what}, and this party wants at least", mes=mes, answers=answers,
        how=SecureSum(threshold=2 / 3),
    )  # fmt: skip


def test_a_server_chooses_no_neighbours():
    """Each draws its own, with a secret and of all who take part: on average everybody as often."""
    n, k, rounds = 30, 8, 30
    drawn = np.zeros((n, n))
    for t in range(rounds):
        seen = []
        play(SPARSE, uploads(np.random.default_rng(1), range(n), 1), seen=seen, t=t)
        for u, (held_by, _) in seen[1].items():
            assert len(set(held_by.tolist())) == k and u not in held_by.tolist()
            drawn[u, held_by.numpy()] += 1
    others = drawn[~np.eye(n, dtype=bool)]
    expected = rounds * k / (n - 1)
    chi = ((others - expected) ** 2 / (expected * (1 - k / (n - 1)))).sum()
    assert chi < stats.chi2(n * (n - 2)).isf(ALPHA)


def test_a_sparse_graph_that_the_server_thins_out_is_refused():
    """It says that most of a party's neighbours are lost, and keeps those on its side."""
    n, how = 40, SecureSum(degree=12)

    def thinned(reply):
        shared, senders, sealed = reply
        return shared[:20], senders[senders < 20], sealed[senders < 20]

    xs = uploads(np.random.default_rng(n), range(n))
    with pytest.raises(Refusal, match=r"of the 12 neighbours that this party has drawn are left"):
        play(how, xs, lie=to([0], 1, thinned))


# -- a party that lies -----------------------------------------------------------------------------


def test_a_wrong_share_is_found_out_and_no_wrong_sum_comes_of_it():
    """The engine then finds who told it: see the tests between sites."""

    class Liar(SecureSum):
        def party(self, me, x, number):
            told = yield from super().party(me, x, number)
            if int(me.number) == 1:
                told = told.clone()
                told[:, 5] ^= 1
            return told

    xs = uploads(np.random.default_rng(1), range(5))
    with pytest.raises(ArchipelError, match="give another one than it advertised"):
        play(Liar(), xs)


def test_a_share_that_does_not_open_is_not_told_and_the_others_suffice():
    class Broken(SecureSum):
        def party(self, me, x, number):
            box = super().party(me, x, number)
            reply = yield next(box)
            held_by, sealed = box.send(reply)
            if int(me.number) == 1:
                sealed = sealed.clone()
                sealed[2] ^= 1
            said = held_by, sealed
            while True:
                try:
                    said = box.send((yield said))
                except StopIteration as end:
                    return end.value

    xs = uploads(np.random.default_rng(1), range(5))
    found = play(Broken(), xs)
    assert torch.equal(found.sums[0], integers(SecureSum(), xs, range(5))[0])


def test_identities_of_a_simulation_are_signatures():
    one, other = Simulated(1, 7), Simulated(2, 7)
    signed = one.sign(b"this")
    assert other.signed(1, signed, b"this")
    assert not other.signed(2, signed, b"this")
    assert not Simulated(2, 8).signed(1, signed, b"this")
    assert not verify(bytes(32), signed, b"this")
