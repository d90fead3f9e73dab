"""The second organism: how it was trained, and the measures of its card.

Its language is ``headtools.organism.second``; weights, results and card are in ``headtools/organism/assets/second``.

    train            python -m recipes.second_organism.train --seed 1
    measure          python -m recipes.second_organism.measure TABLE
    measures/        a module for each table
    card             writes the tables of the card from the results
    batches          sentences as tensors
"""
