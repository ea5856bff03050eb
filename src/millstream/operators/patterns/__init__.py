"""Matches of a pattern over whole batches. The state is the rows themselves, so a changed pattern finds them.

`columns` evaluates conditions over all rows at once: each row becomes a number, the set of conditions that it
satisfies. `every` and `preferred` walk the automaton over these numbers; only a condition that depends on the rows of
a partial match is evaluated on the way. `results` makes columns of the matches, `step` is the operator.
"""
