"""The benchmarks of gradients, recording, pruning and growth measure what they say, and tell their bounds."""

import counts
import gradient
import pruned
import pytest
import recording
import scaling
import subjects
import timing


@pytest.fixture(scope="module")
def tiny() -> subjects.Subject:
    return subjects.make("bert", subjects.TINY)


def complete(rows: list[dict]) -> bool:
    """Every row has a bound with its reason, a spread and seconds."""
    text = timing.markdown(rows)
    good = all(r["why"] and r["low"] <= r["ratio"] <= r["high"] and r["s"] > 0 and r["unit_s"] > 0 for r in rows)
    return good and text.count("\n") == len(rows) + 1


def test_gradient(tiny: subjects.Subject):
    rows = gradient.measure("bert", tiny, 2)
    assert [row["work"] for row in rows] == list(gradient.WORKS)[1:]
    assert {row["counted"] for row in rows} == {counts.gradient("bert", subjects.TINY)}
    assert complete(rows)
    shipped = gradient.measure("organism", gradient.organism(2), 2)
    assert complete(shipped)
    assert {row["counted"] for row in shipped} == {None}


def test_recording_leaves_the_attention_as_it_was(tiny: subjects.Subject):
    rows = recording.measure(tiny, 2)
    assert {row["work"]: row["unit"] for row in rows} == recording.UNITS
    assert complete(rows)
    assert tiny.model.config._attn_implementation == "sdpa"


def test_pruned_cuts_the_share_it_tells(tiny: subjects.Subject):
    assert complete(pruned.measure("bert", tiny, 2))
    assert pruned.without(tiny, 0.5).bert.encoder.layer[0].attention.self.query.out_features == subjects.TINY.width // 2
    assert complete(pruned.decoding(2, sentences=2))


def test_growth(tiny: subjects.Subject):
    rows = scaling.one(tiny, 2, "so many layers", ablated=True)
    assert [row["work"] for row in rows] == ["ht.gradient", "record maps", "ht.ablation"]
    assert complete(rows)
    ran = []
    hook = tiny.model.register_forward_hook(lambda *_: ran.append(1))
    counted = []
    for name in ("ht.gradient", "ht.ablation"):
        for batches in (1, 3):
            for work in scaling.many(tiny, batches, name).values():
                ran.clear()
                work()
                counted.append(len(ran))
    hook.remove()
    assert counted[:4] == [1, 1, 3, 3]
    assert counted[4::2] == [1, 3]
    one, three = counted[5], counted[7]
    each = (three - one) / 2
    assert each == 2 + tiny.size.layers * tiny.size.heads  # the batch, a trial from the last layer, and each head
    assert one - each >= 2  # what is tried first is tried once


def test_a_cost_that_is_there_is_seen(tiny: subjects.Subject, monkeypatch: pytest.MonkeyPatch):
    plain = gradient.ours
    monkeypatch.setitem(gradient.WORKS, "ht.gradient", lambda s: [plain(s) for _ in range(10)])
    slow, activations, _ = gradient.measure("bert", tiny, 2)
    assert slow["ratio"] > 3 * activations["ratio"]
