"""What a head attends to, and what it carries.

    corpus, sentence            sentences with gold annotation: the organism's, the course's English, any CoNLL-U
    word_alignment              from tokens to words: align(), to_words()
    taxonomy                    every head scored for every role, in one pass: taxonomy(), best()
    conventions, baselines, controls   every choice that a score depends on, and what it is compared with
    head_functions              verdicts of a taxonomy: one row a head
    map_classes                 Kovaleva's five classes of maps, by rule
    induction                   heads that find earlier copies, on random tokens that repeat: induction_scores()
    probing, tasks              linear probes, and the labels they are fitted to: probe()
    word_states, erasure        vectors of words, and removing from a head what a probe can find
    attention_sinks             heads of language models that rest on the first token: attention_sinks()
    plain_text                  sentences as written, and batches of them for a language model
    library_texts               long texts that every Python carries: corpus("documents"), corpus("code")

Scores are given beside baselines, and accuracies of probes beside control tasks.
"""
