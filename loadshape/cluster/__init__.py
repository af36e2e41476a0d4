# One run on many machines.
#
# Law: what the machines of a run need beyond what one machine needs, and nothing of what each of them does by itself:
# a part of the trace for each, one clock for all, an agent that starts the same workers as at home, and their logs
# brought together. No request and no byte of an answer passes here.

"""Cluster: the same run spread over several machines, on one clock, with one log."""
