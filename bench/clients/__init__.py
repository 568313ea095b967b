"""Clients that are driven from Python: libraries in this process, command line programs as children.

`worker.py` speaks the protocol of `harness/contender.py`; each other module names what its client can do
in `OPS`: a function that gets a `Job`, prepares everything that is not to be timed, and returns the
function of one round, which returns the bytes it moved.
"""
