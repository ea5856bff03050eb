"""Patterns: which sequence of rows to look for, as values. One model for the fluent API and for MATCH_RECOGNIZE.

A `Rules` object (`rules.py`) is everything a matcher needs to know about a pattern:

- `term`: the shape, a tree of the frozen classes in `terms.py`.
- `conditions`: by variable, the Spark SQL that a row must satisfy to play it. A variable without one takes any row.
- `within`, `between_neighbours`: the limits of time, of the whole match and between two of its rows.
- `subsets`: names for several variables at once (SUBSET u = (a, b)); they can be used where a variable can.

The fluent API (`pattern.py`) and a parser of text both build such an object; neither knows how it is matched. How the
words of MATCH_RECOGNIZE are written with terms:

| SQL | term |
|---|---|
| `A` | `Variable("A")` |
| `A B` | `Sequence((Link(NEXT, A), Link(NEXT, B)))`: all contiguity of SQL is NEXT |
| `A \\| B` | `Alternatives((A, B))`: the first is preferred |
| `A?`, `A*`, `A+`, `A{2,3}` | `Repeat(A, 0, 1)`, `(A, 0, None)`, `(A, 1, None)`, `(A, 2, 3)`, with `greed=GREEDY` |
| `A+?` | `Repeat(A, 1, None, greed=RELUCTANT)` |
| `PERMUTE(A, B)` | `AnyOrder((A, B))` |
| `{- A -}` | `Excluded(A)`: its rows are part of the match, but not of ALL ROWS PER MATCH |
| `^`, `$` | `Anchor(START)`, `Anchor(END)`: the first row of the key; its last, known when the input has ended |
| `()` | `Sequence(())` |
| `[^B]` at the end | `Absence("B", Contiguity.FOLLOWED_BY)`, with `within` |
| `DEFINE B AS price > PREV(price)` | `conditions["B"] = "price > prev(price)"` |

In a condition, `a.x` is the value of the last row that plays `a` so far, `first(a.x)` and `last(a.x)` are the first and
last, `last(a.x, 1)` the one before the last; `sum`, `avg`, `min`, `max` and `count` aggregate over the rows of `a`, and
`count(a)` counts them; `prev(x)`, `prev(x, 2)` look at the rows of the key before this one, whether they match or not.
If `a` is the variable that the condition is for, its rows include the row in question (SQL's RUNNING semantics), except
in `until`. `references.py` finds these references, `measures.py` the same in the columns of a result.

`automaton.py` turns a term into states and edges, in order of preference. The matchers walk it: those of
`reference/patterns/` row by row, those of `operators/patterns/` over whole batches. Both know two semantics: every
match (Flink's), and the preferred one for each first row (SQL's).
"""
