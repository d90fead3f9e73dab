"""The experiments behind every number that ships with the organism. Run one from the repository: python -m recipes.NAME

    train            train the organism from nothing                            -> model, tokenizer, snapshots
    scorecard        translation, roles of heads, whether roles are used        -> scores.json
    growth           snapshots, other seeds, other numbers of heads             -> growth.json
    gates            a pruning curve, and Hard Concrete gates for 1,000 steps   -> pruning.json
    sweep            Hard Concrete gates at every penalty, and at four rates    -> sweep.json
    scratch          the heads that a sweep kept, trained from nothing          -> scratch.json
    orders           pruning curves of many rankings of heads                   -> orders.json
    head_importance  each head off, each left alone in its layer, pairs         -> worth.json, ablation.safetensors
    coverage         how often intervals hold the true mean                     -> docstring of heads/intervals.py
    merging          merging heads against cutting them                         -> merging.json
    latency          what cutting heads buys in time                            -> latency.json
    sinks            what removes an attention sink from a model of one head    -> sinks.json
    truth            every measure on models whose heads are known              -> truth.json
    families         every model family of transformers, built small and tried  -> families.json, notebooks/families.md
    measure_real     what the course says, on a real model (--model smollm2)    -> real/smollm2.json
    whisper          where Whisper's cross-attention looks, at known times      -> real/whisper.json
    long_texts       which heads look back at a fact that is asked for          -> printed
    several_machines gradient importance, each process with its share           -> scores.safetensors

``second_organism`` trains and measures the second organism, whose language has rivals for every pronoun and whose
cross-attention nothing guides (``make results TABLE=second_organism.measure ARGS=cross``).

They use headtools as anybody would and are not installed with it. Results go to ``headtools/organism/assets`` (or to
``--assets FOLDER``), where ``headtools.organism.shipped`` reads them.
"""
