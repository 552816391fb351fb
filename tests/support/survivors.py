"""Mistakes that change no gradient, and why. Each row of the table was judged by hand."""

EITHER_SIGN = "the same axis, counted from the other end"
ANY_MINUS = "NumPy takes any negative length in reshape as the one to be worked out"
SYMMETRIC = "the order of the operands does not matter here"
SHORTCUT = "a shorter way to the same numbers: fewer operations, or none if it is not needed"
UNUSED = "what stands there is multiplied by zero, or masked, or never read"
SAME_SHAPE = "only shape and dtype are read, and those are the same"
ITSELF = "the table turns an array or a number into a constant by itself"
REAL = "for real numbers, or for those that are real already, the same"
NOT_READ = "index arrays have no gradient, and what says so is not read"
WHOLE = "of backward='whole', which the compiler writes"
TWO = "indexes a tuple of two: -1 is 1"
REFUSES = "decides only which unsupported case is refused, which another test holds"

# (module below gpt2, function, before, after): None stands for anything -> why the gradient stays right; with
# how many such mistakes survive, where that is not one. tests/long/mutate.py compares the number, as an edit
# written like this one may stand elsewhere in the function, where it has to be caught.
EXPLAINED = {
    # layers
    ("layers.encoder", "encoder_backward", "1", "-1"): EITHER_SIGN,
    ("layers.layernorm", "layernorm_backward", "-1", "-2"): (ANY_MINUS, 2),
    ("layers.matmul", "matmul_backward", "-1", "-2"): (ANY_MINUS, 2),
    ("layers.matmul", "matmul_backward_naive", "-1", "-2"): (ANY_MINUS, 2),
    ("layers.attention", "attention_backward", "-2", "2"): (EITHER_SIGN, 4),
    **{
        (
            "layers.attention",
            "attention_backward",
            f"{x}.swapaxes(-1, -2)",
            f"{x}.swapaxes(-2, -1)",
        ): SYMMETRIC
        for x in ("k[:, :, keys]", "att", "v[:, :, keys]", "dscores")
    },
    # the model
    (
        "model.backward",
        "backward_pass",
        "if dx is None:",
        "if False:",
    ): "nothing comes of None",
    ("model.backward", "block_backward", "plus(dx, dbranch)", "plus(dbranch, dx)"): (SYMMETRIC, 2),
    ("model.gpt2", "backward", "if self.program is not None:", "if False:"): WHOLE,
    ("model.gpt2", "backward", "self", "scale"): (WHOLE, 3),
    ("model.gpt2", "backward", "scale", "accumulate"): WHOLE,
    ("model.gpt2", "backward", "accumulate", "on_ready"): WHOLE,
    # elementwise
    ("autodiff.ops.elementwise", "_divide", None, "if False:"): SHORTCUT,
    ("autodiff.ops.elementwise", "_divide", "b", "out"): SHORTCUT,
    ("autodiff.ops.elementwise", "_divide", "const_value(b) != 0", "const_value(b) == 0"): SHORTCUT,
    ("autodiff.ops.elementwise", "_divide", "const_value(b)", "b"): (ITSELF, 2),
    ("autodiff.ops.elementwise", "_divide", "0", "1"): SHORTCUT,
    ("autodiff.ops.elementwise", "_power", "equal(a, 0.0)", "equal(0.0, a)"): SYMMETRIC,
    ("autodiff.ops.elementwise", "_power", "1.0", "2.0"): UNUSED,
    ("autodiff.ops.elementwise", "_power_base", "if is_scalar_const(b):", "if False:"): SHORTCUT,
    ("autodiff.ops.elementwise", "_power_base", "b", "a"): SHORTCUT,
    (
        "autodiff.ops.elementwise",
        "_power_base",
        "1.0 if n == 1 else (n, a) if n == 2 else (n, a ** (n - 1))",
        "(n, a) if n == 2 else (n, a ** (n - 1))",
    ): SHORTCUT,
    (
        "autodiff.ops.elementwise",
        "_power_base",
        "(n, a) if n == 2 else (n, a ** (n - 1))",
        "(n, a ** (n - 1))",
    ): SHORTCUT,
    ("autodiff.ops.elementwise", "_power_base", "equal(b, 0.0)", "equal(0.0, b)"): SYMMETRIC,
    ("autodiff.ops.elementwise", "_power_base", "1.0", "2.0"): UNUSED,
    ("autodiff.ops.elementwise", "_power_base", "2", "-2"): SHORTCUT,
    ("autodiff.ops.elementwise", "_power_base", "1", "-1"): SHORTCUT,
    ("autodiff.ops.elementwise", "partials", "equal(out, -math.inf)", "equal(-math.inf, out)"): SYMMETRIC,
    ("autodiff.ops.elementwise", "partials", "0.0", "1.0"): "e**(-inf - anything finite) is 0",
    ("autodiff.ops.elementwise", "_sinc", "1.0", "2.0"): UNUSED,
    ("autodiff.ops.elementwise", "_sinc", "1.0", "-1.0"): UNUSED,
    ("autodiff.ops.elementwise", "_sinc", "45360", "45361"): "changes the result by 1e-13",
    ("autodiff.ops.elementwise", "_chosen", "equal(a, b)", "equal(b, a)"): SYMMETRIC,
    ("autodiff.ops.elementwise", "_chosen", "equal(out, x)", "equal(x, out)"): SYMMETRIC,
    ("autodiff.ops.elementwise", "_chosen", "out", "a"): SAME_SHAPE,
    ("autodiff.ops.elementwise", "_sign", None, None): (REFUSES, 2),
    ("autodiff.ops.elementwise", "_angle", None, "(1.0 / x, -1j)"): REAL,
    # the chain rule
    ("autodiff.derive.differentiate", "pull", "if op.jvp is not None:", "if True:"): REFUSES,
    (
        "autodiff.derive.differentiate",
        "pull",
        "fit(force(d), a) if need else None",
        "fit(force(d), a)",
    ): SHORTCUT,
    (
        "autodiff.derive.chain_rule",
        "force",
        "applied(entry())",
        "entry()",
    ): "a gradient may stay masked: whatever takes it applies the mask",
    (
        "autodiff.derive.chain_rule",
        "pull_elementwise",
        "factor_list(factors) if need else None",
        "factor_list(factors)",
    ): SHORTCUT,
    ("autodiff.derive.chain_rule", "partials", "if rule is None:", "if False:"): REFUSES,
    ("autodiff.derive.chain_rule", "pull_factors", "if arg.shape == node.shape:", "if False:"): SHORTCUT,
    ("autodiff.derive.chain_rule", "pull_factors", "node", "g"): (SAME_SHAPE, 3),
    ("autodiff.derive.chain_rule", "fits", "1", "-1"): SHORTCUT,
    ("autodiff.derive.chain_rule", "times", "if g.op != 'broadcast':", "if True:"): SHORTCUT,
    **{
        ("autodiff.derive.chain_rule", "times", "g.args[0] if f.shape == shape else g", after): SHORTCUT
        for after in ("g", "g.args[0]")
    },
    ("autodiff.derive.chain_rule", "times", "f.shape == shape", "f.shape != shape"): SHORTCUT,
    ("autodiff.derive.chain_rule", "times", "shape", "g"): SHORTCUT,
    (
        "autodiff.derive.chain_rule",
        "times",
        "multiplied(g.args[0] if f.shape == shape else g, f)",
        "multiplied(f, g.args[0] if f.shape == shape else g)",
    ): SYMMETRIC,
    **{
        (
            "autodiff.derive.chain_rule",
            "multiplied",
            f"is_number({x}, {one})",
            f"is_number({one}, {x})",
        ): SYMMETRIC
        for x, one in (("f", "1.0"), ("f", "-1.0"), ("g.value", "1.0"))
    },
    **{
        (
            "autodiff.derive.chain_rule",
            "multiplied",
            x,
            y,
        ): "1 times a factor of another type: the numbers are the factor's, "
        "and the gradient gets its own type in the end"
        for x, y in (("f", "g"), ("g", "f"))
    },
    ("autodiff.derive.chain_rule", "is_number", "x", "value"): "a node is equal to no number",
    ("autodiff.derive.chain_rule", "pull_where", "node", "g"): (SAME_SHAPE, 2),
    (
        "autodiff.derive.chain_rule",
        "pull_where",
        None,
        "masked if same else fit(masked.applied(), branch)",
    ): SHORTCUT,
    **{
        (
            "autodiff.derive.differentiate",
            "transposed_jvp",
            f"applied({x})",
            x,
        ): "a gradient may stay masked: whatever takes it applies the mask"
        for x in "cg"
    },
    ("autodiff.derive.chain_rule", "unbroadcast", "if g.shape == x.shape:", "if False:"): SHORTCUT,
    ("autodiff.derive.chain_rule", "unbroadcast", "if not new:", "if False:"): SHORTCUT,
    ("autodiff.derive.chain_rule", "unbroadcast", "1", "-1"): "adds up an axis of length 1 too",
    ("autodiff.derive.chain_rule", "total", "if len(parts) == 1:", "if False:"): SHORTCUT,
    ("autodiff.derive.chain_rule", "total", "1", "-1"): SHORTCUT,
    (
        "autodiff.derive.chain_rule",
        "total",
        "values.get(False, 0.0)",
        "values.get(0.0, False)",
    ): "0.0 and False are one key, and one number",
    ("autodiff.derive.chain_rule", "add_all", "plus(g, p)", "plus(p, g)"): SYMMETRIC,
    **{
        ("autodiff.derive.chain_rule", "plus", before, after): SHORTCUT
        for before, after in (
            ("if p.op == 'broadcast' and p.shape == g.shape and (g.op != 'broadcast'):", "if False:"),
            ("p.shape == g.shape", "p.shape != g.shape"),
            ("g.op != 'broadcast'", "g.op == 'broadcast'"),
            ("g - p.args[0] if p.op == 'negative' else g + p", "g + p"),
        )
    },
    **{("autodiff.derive.chain_rule", "plus", x, y): (SHORTCUT, 2) for x, y in (("p", "g"), ("g", "p"))},
    ("autodiff.derive.chain_rule", "merge_assembles", "if len(parts) == 1:", "if False:"): SHORTCUT,
    ("autodiff.derive.chain_rule", "merge_assembles", "1", "-1"): SHORTCUT,
    ("autodiff.derive.chain_rule", "merge_assembles", "0", "1"): SAME_SHAPE,
    ("autodiff.derive.chain_rule", "push", "if op.kind == 'multilinear':", "if True:"): REFUSES,
    # fft
    ("autodiff.ops.fft", "_transpose", "g", "out"): SAME_SHAPE,
    ("autodiff.ops.fft", "_transpose", "const(1.0 / count)", "1.0 / count"): ITSELF,
    ("autodiff.ops.fft", "_transpose", "const(count)", "count"): ITSELF,
    ("autodiff.ops.fft", "half_spectrum_counts", "2", "-2"): "odd is odd for a negative divisor too",
    ("autodiff.ops.fft", "half_spectrum_counts", "0", "1"): "only the dtype of that array is read",
    ("autodiff.ops.fft", "half_spectrum_counts", "-1", "-2"): ANY_MINUS,
    # index
    ("autodiff.ops.index", "_scatter_transpose", "if not taken.size:", "if False:"): SHORTCUT,
    ("autodiff.ops.index", "_scatter_transpose", "return taken", "return -taken"): "it has no entries",
    (
        "autodiff.ops.index",
        "_scatter_transpose",
        "const(np.arange(taken.size).reshape(taken.shape))",
        "np.arange(taken.size).reshape(taken.shape)",
    ): ITSELF,
    (
        "autodiff.ops.index",
        "_scatter_transpose",
        "equal(apply('gather', numbers, *arrays, spec=spec), number)",
        "equal(number, apply('gather', numbers, *arrays, spec=spec))",
    ): SYMMETRIC,
    ("autodiff.ops.index", "_scatter_transpose", "no_gradient(arrays)", "arrays"): NOT_READ,
    ("autodiff.ops.index", "no_gradient", None, None): NOT_READ,
    # linear algebra
    ("autodiff.ops.linalg", "_slogdet_jvp", "if x.dtype.kind != 'c':", "if False:"): REAL,
    ("autodiff.ops.linalg", "eye", "real_dtype(dtype)", "dtype"): REAL,
    ("autodiff.ops.linalg", "lower", "real_dtype(dtype)", "dtype"): REAL,
    (
        "autodiff.ops.linalg",
        "lower",
        None,
        "np.tril(np.ones((n, n), d), -1) + np.asarray(diagonal, d) * np.eye(n, dtype=d)",
    ): ITSELF,
    ("autodiff.ops.linalg", "_cholesky_jvp", "x", "t"): (SAME_SHAPE, 2),
    ("autodiff.ops.linalg", "_qr_jvp", "x", "t"): (SAME_SHAPE, 4),
    **{
        ("autodiff.ops.linalg", f, "-1", other): ("the last two axes are of one length", n)
        for f, n in (("_cholesky_jvp", 1), ("hermitian", 2), ("diagonal", 2))
        for other in ("1", "-2")
    },
    ("autodiff.ops.linalg", "_qr_jvp", "1", "-1"): TWO,
    ("autodiff.ops.linalg", "_eigh_jvp", "1", "-1"): TWO,
    ("autodiff.ops.linalg", "_eig_jvp", "1", "-1"): TWO,
    ("autodiff.ops.linalg", "_qr_jvp", "if x.shape[-1] > k:", "if True:"): SHORTCUT,
    (
        "autodiff.ops.linalg",
        "_eigh_jvp",
        "real(diagonal(inner))",
        "diagonal(inner)",
    ): "the chain rule takes the real part where the value is real",
    (
        "autodiff.ops.linalg",
        "_eig_jvp",
        "real(conjugate(v) * dv)",
        "conjugate(v) * dv",
    ): "the turn by a phase, which comes next, takes the imaginary part away",
    ("autodiff.ops.linalg", "_eig_jvp", "if v.dtype.kind == 'c':", "if True:"): REAL,
    ("autodiff.ops.linalg", "_eig_jvp", "absolute(v)", "v"): "any entry that is not 0 settles the phase",
    ("autodiff.ops.linalg", "_svd_jvp", "if x.dtype.kind == 'c':", "if True:"): REAL,
    ("autodiff.ops.linalg", "_svd_jvp", "if m > k:", "if True:"): "adds what is zero for a square matrix",
    ("autodiff.ops.linalg", "_svd_jvp", "if n > k:", "if True:"): "adds what is zero for a square matrix",
    (
        "autodiff.ops.linalg",
        "_svd_jvp",
        "return (_no_full_vectors, real(diagonal(adjoint(u) @ t @ adjoint(vh))), _no_full_vectors)",
        None,
    ): (REFUSES, 2),
    # products
    ("autodiff.ops.matrix", "_matmul_transpose", "if b.ndim > 2:", "if True:"): SHORTCUT,
    ("autodiff.ops.matrix", "_matmul_transpose", "b", "g"): SHORTCUT,
    ("autodiff.ops.matrix", "_matmul_transpose", "2", "-2"): SHORTCUT,
    ("autodiff.ops.matrix", "_matmul_transpose", "out", "a"): SAME_SHAPE,
    # reductions
    ("autodiff.ops.reduce", "_prod_jvp", "if n % 2:", "if True:"): "joins an empty piece",
    ("autodiff.ops.reduce", "_prod_jvp", "2", "-2"): "odd is odd for a negative divisor too",
    ("autodiff.ops.reduce", "_prod_jvp", "-1", "1"): (EITHER_SIGN, 2),
    ("autodiff.ops.reduce", "_cumprod_jvp", "n - reach", "-reach"): "counts from the end: the same place",
}


def explanation(mutant):
    """The key of EXPLAINED that the mutant fits, or None."""
    for key in EXPLAINED:
        if all(k is None or k == part for k, part in zip(key, mutant.key)):
            return key
    return None


def reason_and_number(key):
    """Why mutants of this key survive rightly, and how many do."""
    why = EXPLAINED[key]
    return (why, 1) if isinstance(why, str) else why
