"""The numbers of the second organism's card, one module a table: ``python -m recipes.second_organism.measure TABLE``

    scores        BLEU on every split, accuracy by what a word needs to know, hard as a grid of length and depth
    roles         what encoder heads look at, by the first organism's rule and by a stricter one, beside untrained twins
    use           what it costs to switch off the heads of a role, on the piece of a word that the role writes
    coreference   heads beside four surface rules, also by the role of the antecedent
    cross         how well cross heads align
    pruning       curves of encoder, decoder and cross heads, by gradient and at random
    draws         gradient importance from draws of 200 sentences beside that from 1,600
    layers        whole layers off, and pairs of heads that stand in for each other
    pairs         all pairs of encoder heads: found on some sentences, confirmed on others
    rates         gates at penalty 0: how many close at each gate rate
    sweep         gates on the encoder: BLEU, and what the heads that are left do, at each penalty
    kinds         gates on all heads: which kind and which layers lose theirs
    controls      what models learned that were trained without something
    goals         what all this was to show, and how far it does; written from the other tables

Each module but the last has ``measure(model, tokenizer, limit)``, which returns what JSON can hold; ``markdown`` turns
the results of all measured models into the card's tables.
"""
