"""Statistics of rounds of times, and tables."""

import statistics


def of_rounds(rounds):
    """One time for each round: the median over the turn's steps, which ignores single interruptions."""
    return [statistics.median(times) for times in rounds]


def spread(values):
    """Median, lower and upper quartile, as a dict."""
    if len(values) < 2:
        return {"median": values[0], "q1": values[0], "q3": values[0]}
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3}


def times(rounds):
    """Milliseconds of one contender: spread over the rounds, fastest step, numbers of steps and rounds."""
    spans = spread([1e3 * x for x in of_rounds(rounds)])
    every = [x for turn in rounds for x in turn]
    return {**spans, "min": 1e3 * min(every), "n": len(every), "rounds": len(rounds)}


def ratio(rounds, reference):
    """Spread of the ratios to a reference, taken round by round."""
    return spread([a / b for a, b in zip(of_rounds(rounds), of_rounds(reference))])


def shown(spread, digits=2):
    """A spread as text: 0.93 [0.91 0.95]."""
    return f"{spread['median']:.{digits}f} [{spread['q1']:.{digits}f} {spread['q3']:.{digits}f}]"


def aligned(rows):
    """The rows with cells padded to the width of their column: the first to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]


def table(header, rows):
    """Rows of text under a header."""
    return "\n".join("  ".join(row) for row in aligned([header, *rows]))
