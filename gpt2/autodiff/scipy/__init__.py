"""SciPy's modules with functions that have derivatives.

    from gpt2.autodiff.scipy import integrate, interpolate, linalg, ndimage, optimize, signal, sparse
    from gpt2.autodiff.scipy import special, stats

SciPy's own functions convert their arguments to plain arrays. Each module here has SciPy's names: functions
with a rule take recorded values, everything else is SciPy's own. On plain arrays the functions are SciPy's.
The ufuncs of scipy.special need none of this: they are recorded as they are.
"""
