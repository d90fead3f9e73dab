"""What a head looks at, and what it carries.

    corpus, sentence, conllu    sentences with gold annotation: the organism's, the course's English, any CoNLL-U
    word_alignment              from tokens to words: align(), to_words()
    taxonomy                    every head scored for every role, in one pass: taxonomy(), best()
    conventions, baselines, controls   every choice that a score depends on, and what it is compared with
    head_functions              verdicts: one row a head
    map_classes                 Kovaleva's five classes of maps, by rule
    induction                   heads that look back in random repeats
    probing, attention_probe    what can be read off vectors and maps
    word_states, erasure        vectors of words, and taking out of a head what a probe found
"""

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "geometry":
        from headtools import geometry

        warnings.warn("headtools.roles.geometry is headtools.geometry now: from headtools import geometry",
                      DeprecationWarning, stacklevel=2)  # fmt: skip
        return geometry
    raise AttributeError(f"module 'headtools.roles' has no attribute {name!r}")
