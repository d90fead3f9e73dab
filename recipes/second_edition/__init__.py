"""The organism, second edition: its language, its training and its measures, beside the first edition.

``headtools.load()`` opens the first edition until the lessons have moved to this one. README.md is the model card.

    language/        the language: grammar, target words, vocabulary, LANGUAGE.md
    batches          sentences as tensors
    train            python -m recipes.second_edition.train
    load             the trained model and its tokenizer
"""
