"""Losses without some heads at the cost of what comes after them: a recorded run is entered in the middle.

    trace   what the parts of a model did in one run       copies  several copies of a batch in one run
    entry   enter the run at an attention layer            runs    the losses, and the checks that make them exact
"""
