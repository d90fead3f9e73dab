"""Sentences side by side: the words that changed are the words that are marked."""

import pytest
from matplotlib import pyplot as plt

from headtools.course.plot import changed_words
from headtools.course.plot import words as compare_words


def texts(fig):
    return [(t.get_text(), t.get_weight() == "bold") for t in fig.axes[0].texts]


def test_a_moved_word_and_a_new_word_are_changes():
    assert changed_words(["a", "b", "c", "d"], ["a", "c", "x", "d"]) == [False, False, True, False]
    assert changed_words([], ["a"]) == [True]


def test_only_later_rows_are_marked():
    fig = compare_words([("before", ["the", "dog"]), ("after", ["the", "cat"])])
    assert [text for text, bold in texts(fig) if bold] == ["cat"]
    assert len(texts(fig)) == 6
    plt.close(fig)


def test_long_rows_wrap_and_keep_every_word():
    words = [f"word{i}" for i in range(40)]
    fig = compare_words([("long", words)])
    assert [t for t, _ in texts(fig) if t.startswith("word")] == words
    assert len({t.get_position()[1] for t in fig.axes[0].texts}) > 1
    plt.close(fig)


def test_a_row_without_words_is_refused():
    with pytest.raises(ValueError, match="needs a name and words"):
        compare_words([("empty", [])])
