# SPDX-License-Identifier: Apache-2.0
"""A site's own table: bound with how it is written, and not at all where it is not as agreed."""

import pytest

import archipel as ar
from archipel.data.dialect import Written
from archipel.federation.site import binding
from archipel.study.file import Study

WEIGHT = {"kind": "number", "unit": "kg", "min": 30, "max": 150}


def study_of(weight):
    schema = {"weight": weight, "dose": "number", "ill": [0, 1]}
    return Study.parse({"data": {"schema": schema, "target": "ill", "test": 0.0}}, elsewhere=True)


def table(folder, *rows):
    path = folder / "lille.csv"
    path.write_text("\n".join(["weight;dose;ill", *rows]))
    return path


def test_what_a_site_says_of_its_file_is_kept_with_it(tmp_path):
    """E12: files of other sites may be written otherwise, so the study does not say it."""
    file, study = table(tmp_path, "70;1.234;0", "80;2.345;1"), study_of("number")
    with pytest.raises(ar.ArchipelError, match=r"may be 1\.234 or thousands; say which in"):
        binding.bind(tmp_path / "data", study, file)
    assert binding.bound(tmp_path / "data") == []

    binding.bind(tmp_path / "data", study, file, Written(decimal="."))

    (bound,) = binding.bound(tmp_path / "data")
    assert (bound.file, bound.written, bound.unchanged) == (file, Written(decimal="."), True)
    assert binding.records(tmp_path / "data", study).x[:, 1].tolist() == [1.234, 2.345]
    assert binding.report(tmp_path / "data", study).read_with["decimal"] == "."
    file.write_text(file.read_text() + "\n90;1.5;1")
    (bound,) = binding.bound(tmp_path / "data")
    assert not bound.unchanged
    with pytest.raises(ar.ArchipelError, match="is not the table that was bound any more"):
        binding.report(tmp_path / "data", study)


def test_a_table_in_another_unit_is_shown_and_not_bound(tmp_path):
    """E7: pounds were bound without a word."""
    file, seen = table(tmp_path, "170;1.5;0", "180;2.5;1"), []

    with pytest.raises(ar.ArchipelError, match=r"out of range, 30 to 150 kg .*like pounds"):
        binding.bind(tmp_path / "data", study_of(WEIGHT), file, show=seen.append)

    (report,) = seen
    assert report.columns[0].quartiles[2] == 175
    assert any("looks like pounds" in note for note in report.columns[0].notes)
    assert binding.bound(tmp_path / "data") == []


def test_a_table_that_was_checked_in_kilograms_is_not_used_for_pounds(tmp_path):
    """E7: the unit belongs to what a table is bound to."""
    file = table(tmp_path, "70;1.5;0", "80;2.5;1")
    binding.bind(tmp_path / "data", study_of({"kind": "number", "unit": "kg"}), file)

    with pytest.raises(ar.ArchipelError, match="no table of this site is bound to its columns"):
        binding.records(tmp_path / "data", study_of({"kind": "number", "unit": "lb"}))
