"""What a model translates that was trained without something: an aid, or encoder attention."""

from torch import nn

from headtools.organism.second.language import corpus
from headtools.organism.second.translation import PHENOMENA
from recipes._results import interval
from recipes.second_organism.measures._words import by_sentence, right_words, share, table

SENTENCES = 500
SHOWN = ("role", "noun", "left accent", "right accent", "subject", "object", "verb family", "owner", "antecedent")


def measure(model: nn.Module, tokenizer: object, limit: int | None = None) -> dict:
    """Word accuracy on test and hard sentences, and by what a word needs to know."""
    n = min(SENTENCES, limit or SENTENCES)
    test, hard = corpus("test", n), corpus("hard", n)
    right = right_words(model, test)
    needs = [needed for s in test for needed in (*s.phenomena, ())]
    return {
        "sentences": n,
        "test": interval(by_sentence(right, test)),
        "hard": interval(by_sentence(right_words(model, hard), hard)),
        "phenomena": {name: share(right[[name in needed for needed in needs]]) for name in PHENOMENA},
    }


def markdown(results: dict[str, dict]) -> str:
    """One row a run."""
    rows = [
        [
            name,
            "{:.3f} ({:.3f}–{:.3f})".format(*result["test"]),
            f"{result['hard'][0]:.3f}",
            *(f"{result['phenomena'][p]:.3f}" for p in SHOWN),
        ]
        for name, result in results.items()
    ]
    return table(["run", "test", "hard", *SHOWN], rows)
