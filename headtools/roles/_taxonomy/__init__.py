"""What stands behind taxonomy(): from sentences to annotated sequences, from these to targets, scores, sums, the table.

    batches     which sentences run together             sequences     tokens and words of a batch, by kind of attention
    annotation  heads, relations, mentions as tensors    spans         from tokens to words
    targets     who should attend to whom, by role       pairing       the best offset, rarest words, alignments
    plan        targets of many sentences at once        scores        what is measured in the maps of one batch
    statistics  confidence, entropy, distance, content   batch_sums    sums of all heads while a batch runs
    running_sums  totals with resampled ones             table         scores, intervals and verdicts
    families    roles that are scored alike
"""
