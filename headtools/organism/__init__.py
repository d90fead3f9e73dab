"""The shipped model and its language.

    lexicon      the words of both languages           grammar, tree_nodes  source sentences with their trees
    translation  how the target language writes them   vocabulary     every word and what it says: gloss(word)
    language     the splits: sentences("test")         batches        sentences as tensors, to measure and to train on
    load         load(), translate()                   save           save() of a pruned model
    evaluate     token accuracy, BLEU                  roles_found    which words its heads look at, and their roles
    shipped      its measured tables, as frames        features, word_predictions  what it must say, and what it says
    snapshots    the model while it learned            model_card     card()
    toy_decoder  two layers in which induction grows live

How it was trained and measured: the scripts in ``recipes/`` of the repository.
"""

from headtools.organism.model_card import card

__all__ = ["card"]
