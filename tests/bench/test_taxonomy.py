"""The benchmark of the taxonomy measures what it says, and sees a cost that is there."""

import pytest
import taxonomy
import timing
import transformers


@pytest.fixture
def tiny() -> taxonomy.Subject:
    test, validation = taxonomy.sentences(3)
    tokenizer = taxonomy.word_pieces({word for s in (*test, *validation) for word in s.words})
    config = transformers.BertConfig(
        num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=16, vocab_size=len(tokenizer)
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    return taxonomy.Subject("tiny", model, tokenizer, [2, 3], bound=1.5)


def test_every_size_gives_two_rows(tiny: taxonomy.Subject):
    rows = taxonomy.measure(tiny, rounds=2)
    assert [row["work"] for row in rows] == [
        f"taxonomy, {n} sentences; passes {how}" for n in (2, 3) for how in ("in order", "sorted by length")
    ]
    assert all(row["s"] > 0 and row["unit_s"] > 0 for row in rows)
    assert timing.markdown(rows).count("\n") == 5


def test_a_cost_over_its_bound_is_seen(tiny: taxonomy.Subject):
    assert len(timing.over(taxonomy.measure(tiny, rounds=2))) == 4  # one layer of width 16 is next to nothing


def test_some_words_are_cut(tiny: taxonomy.Subject):
    test, _ = taxonomy.sentences(3)
    pieces = [len(tiny.tokenizer(word, add_special_tokens=False).input_ids) for s in test for word in s.words]
    assert set(pieces) == {1, 2}
    assert tiny.tokenizer.unk_token_id not in tiny.tokenizer([str(s) for s in test]).input_ids[0]


def test_the_plain_pass_runs_what_the_taxonomy_runs():
    for kinds, whole in (("encoder", False), (None, True)):
        subject = taxonomy.organism(kinds, [2])
        ran = []
        hook = subject.model.get_decoder().register_forward_hook(lambda *_: ran.append(1))  # noqa: B023
        taxonomy.plain_pass(subject, taxonomy.sentences(2)[0])()
        hook.remove()
        assert bool(ran) == whole
