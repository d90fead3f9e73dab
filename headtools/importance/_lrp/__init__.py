"""Layer-wise relevance propagation, operation by operation.

rule_set     which rule each kind of operation follows: ``Rules``, and the named sets
rules        the context in which gradients carry relevance
operations   which function runs which operation of torch
functions    the backward passes, one for each rule
tangent      the rule for operations that have none
targets      the numbers to explain
passes       forward and backward over one batch
"""
