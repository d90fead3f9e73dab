"""Losses without some heads at the cost of what comes after them: a recorded run is entered in the middle.

trace            what the parts of a model returned in one run
copies           several copies of a batch in one run
entry            enter the run at an attention layer
ablated_losses   the losses, and the checks that make them exact
"""
