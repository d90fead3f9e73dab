"""The shipped model and its language.

    lexicon      the words of both languages           grammar, nodes    source sentences with their trees
    translation  how the target language writes them   vocabulary        every word and what it says: gloss(word)
    language     the splits: sentences("test")         publish           the assets folder and its checksums
    objective    losses and aids                       train, checkpoint the training command, resumable
    load         load(), translate()                   score, roles_found what the model card says, measured
    snapshots    the model on the way                  growth             scores on the way, of other seeds and sizes
    pruning      how many heads it needs               usage, features    are roles used, does it say what it must
    sweep        which heads stay at every price       scratch            the same heads, trained from nothing
    jobs         runs side by side, or on a cluster
    orders       pruning curves of all orders          latency            what cutting buys in time
    merging      merging heads against cutting them    said               what it says about a feature, word by word
    model_card   card()                               sprout             two layers in which induction grows live
"""

from headtools.organism.model_card import card

__all__ = ["card"]
