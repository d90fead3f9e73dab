"""The second organism: the same words and the same size, and a language in which shortcuts fail.

The lessons take their first steps on the first organism, whose heads are easy to name. Three of its findings say less
than they seem to: all of its cross-attention heads were trained to align, the first noun that fits is nearly always the
antecedent of a pronoun, and each of its relations lies at few distances. In the second organism nothing guides
cross-attention, other nouns fit a pronoun as well, and places and adverbs may stand first. ``load("organism2")`` opens
it, ``corpus("organism2")`` has its sentences, ``second_results("cross")`` what was measured on it.

    language     the splits: sentences("test")             grammar        source sentences with their trees
    translation  how the target language writes them       vocabulary     every word and its meaning: gloss(word)
    results      its measured tables                       LANGUAGE.md    the language, explained in twenty minutes
"""

SECOND = "organism2"
