"""The shipped model and its language.

    lexicon      the words of both languages           grammar, tree_nodes  source sentences with their trees
    translation  how the target language writes them   vocabulary     every word and its meaning: gloss(word)
    language     the splits: sentences("test")         batches        sentences as tensors, to measure and to train on
    features     what a translation must express       evaluate       token accuracy, BLEU, features of predicted words
    load         load(), translate()                   save           save() of a pruned model
    shipped      its measured tables, as frames        roles_found    what its heads attend to, and their roles
    snapshots    the model during its training         model_card     model_card()
    real_models  real models and their tables          fetch          how they get onto this machine
    second       the second organism, trained on a language in which shortcuts fail
    toy_decoder  two layers in which induction appears while a lesson runs

How it was trained and measured: the scripts in ``recipes/`` of the repository.
"""

from headtools.organism import features  # adds its tasks to the probes'
from headtools.organism.model_card import model_card

__all__ = ["features", "model_card"]
