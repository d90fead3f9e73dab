"""Published curves: they agree with themselves and with the sentences that the papers write about them."""

import itertools

import pytest

from headtools.course import published as p


def test_curves_of_voita_say_what_the_paper_says():
    for name, whole in (("WMT", 29.60), ("OpenSubtitles", 32.40)):
        curve = p.VOITA_ENCODER[name]
        assert curve[0] == (48, whole)
        assert all(a > b for (a, _), (b, _) in itertools.pairwise(curve))
    assert dict(p.VOITA_ENCODER["WMT"])[10] == pytest.approx(29.60 - 0.15)
    assert dict(p.VOITA_ENCODER["OpenSubtitles"])[4] == pytest.approx(32.40 - 0.25)
    totals = {name: [sum(kept) for kept, _, _ in rows] for name, rows in p.VOITA_ALL.items()}
    assert totals == {"WMT": [144, 75, 58, 36, 26], "OpenSubtitles": [144, 104, 61, 28]}
    assert all(kept == sum(some) for kept, *some in p.VOITA_FUNCTIONS)


def test_michel_has_a_point_for_every_tenth():
    assert all(len(curve) == 11 for curve in p.MICHEL.values())
    assert {curve[0] for name, curve in p.MICHEL.items() if name.startswith("WMT")} == {36.05}
    joint, one_out = p.MICHEL["WMT, gradient"], p.MICHEL["WMT, one out"]
    assert all(a >= b for a, b in zip(joint, one_out, strict=True))
