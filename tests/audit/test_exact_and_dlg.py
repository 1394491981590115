"""Records from uploads: exactly from a dense layer, by search, and nothing where it is hidden."""

import pytest
import torch

from archipel.audit.auditing import audit
from archipel.study.file import Study

STUDY = """
[study]
rounds = 1
[data]
name = "heart_disease"
[model]
name = "mlp"
widths = [32]
[algorithm]
name = "fedsgd"
lr = 0.1
batch_size = 1
"""


def found(text, attack):
    done = audit(Study.parse(text), attacks=[attack], quick=True)
    return done, {
        learnt.adversary.who: finding for learnt in done.learnt for finding in learnt.findings
    }


def test_a_dense_layer_and_one_record_give_the_record():
    done, by = found(STUDY, "exact")

    assert by["server"].score == by["group"].score == 1.0
    assert by["server"].details["psnr_median"] > 60
    assert by["server"].chance < 0.05
    assert "could make 100 %" in done.sentence


def test_a_secure_sum_of_whole_tables_leaves_nothing():
    hidden = STUDY.replace("batch_size = 1", "") + '[wire]\nsum = "secure"\n'
    _, by = found(hidden, "exact")

    assert by["server"].score == by["sums"].score == 0.0
    assert not by["server"].alarming


def test_a_sum_hides_nobody_from_all_others_together():
    _, by = found(STUDY + '[wire]\nsum = "secure"\n', "exact")

    assert by["group"].score == 1.0


@pytest.mark.parametrize("trust", ["nobody", "record"])
def test_clip_and_noise_leave_nothing(trust):
    unit = 'unit = "record"' if trust == "record" else f'unit = "party"\ntrust = "{trust}"'
    clip = "[privacy]\nepsilon = 2\ndelta = 1e-3\nclip = 0.5\n"
    few = '"heart_disease"\npartition = "iid"\nparties = 246'  # three records or so at each
    text = STUDY.replace('"heart_disease"', few).replace("batch_size = 1", "")
    assert found(text, "exact")[1]["server"].score > 0.2
    _, by = found(text + clip + unit, "exact")

    assert by["server"].score == 0.0
    assert by["server"].details["psnr_best"] < 25
    assert by["server"].ceiling is not None
    assert by["server"].within


def test_a_search_finds_a_record_and_its_label():
    _, by = found(STUDY.replace('"mlp"\nwidths = [32]', '"logistic"'), "dlg")

    assert by["server"].score >= 0.5


def test_local_steps_are_told_apart():
    text = STUDY.replace('"fedsgd"', '"fedavg"').replace("batch_size = 1", "batch_size = 8")
    _, by = found(text, "dlg")

    assert by["server"].score is None
    assert "does not apply" in by["server"].said


def test_images_of_one_record_are_found_at_60_decibels():
    text = STUDY.replace('"heart_disease"', '"mnist"\nparties = 50')
    _, by = found(text, "exact")

    assert by["server"].details["psnr_median"] > 60


def test_torch_is_as_it_was():
    before = torch.get_rng_state()
    found(STUDY, "exact")

    assert torch.equal(before, torch.get_rng_state())
