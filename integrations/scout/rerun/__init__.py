"""Computing again: equivalent ranks run the same call and compare what comes out, bit for bit.

specs       what a call was made of: shapes, element types, what surrounds it; and tensors made from that by a seed
recipes     which calls of a model are computed again, in turn
module_call one module's forward and backward pass
update      one optimizer's step on a slice
isolation   nothing live is touched, nothing is told to other ranks
reruns      when, in the trainer
verdicts    what the ranks' results mean, in the run; with it the results that once were agreed on
"""
