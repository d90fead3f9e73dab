"""What runs a measure: batches, progress, finished batches on disk, several processes.

    run         one loop over batches: run(measure, model, batches)
    store       finished batches; files that are written whole or not at all; fingerprints of content
    processes   several processes share the batches: sharded()
    progress    a bar that is gone when the work is done
"""
