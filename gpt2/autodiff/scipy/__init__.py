"""SciPy's functions with derivatives, where SciPy itself turns its arguments into plain arrays.

    from gpt2.autodiff.scipy import integrate, interpolate, linalg, ndimage, optimize, signal, sparse
    from gpt2.autodiff.scipy import special, stats

Each is the module of that name: what has a rule here takes recorded values, and everything else is SciPy's
own. On plain arrays the functions are SciPy's. The ufuncs of scipy.special need none of this: they are
recorded as they are.
"""
