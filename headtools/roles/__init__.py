"""What a head looks at, and what it carries.

    corpus, treebank                sentences with gold annotation: the organism's, the course's English, any CoNLL-U
    alignment                       from tokens to words: align(), to_words()
    taxonomy                        every head scored for every role, in one pass: taxonomy(), best(). Its parts: what
                                    is counted (gold, units, sides, conventions, pairing, partners, measures,
                                    families), the sums (plan, running, tally, rows), the comparison (baselines,
                                    controls), verdicts (holders)
    map_classes                     Kovaleva's five classes of maps, by rule
    induction, segments             heads that look back in random repeats
    geometry                        what weights can read and write. Its parts: factored, circuits, bilinear,
                                    composition, pairs, calibration
    probe, attention_probe          what can be read off vectors and maps. Their parts: states, tasks, linear
    erase                           take out of a head what a probe found
"""
