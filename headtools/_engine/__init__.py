"""The engine that runs measures: batches, progress, resuming, several processes.

run         one loop over batches: run(measure, model, batches)
store       atomic writes, fingerprints of content, and the finished batches of a resumable run
processes   several processes share the batches: sharded()
progress    a progress bar that leaves no trace in a notebook
"""
