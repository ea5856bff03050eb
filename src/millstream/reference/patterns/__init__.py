"""Matches of a pattern, row by row: `every` finds every match, `preferred` the preferred one of each first row.

`conditions` asks whether a row satisfies a condition, `step` is the operator around the matchers.
"""
