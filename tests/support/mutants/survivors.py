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

MASKED = "a gradient may stay masked: whatever takes it applies the mask"
FACTOR_ONE = "1 times a factor has its numbers, and the gradient gets its own type in the end"

# (module below gpt2, function) -> {(before, after): why the gradient stays right}, where None stands for any
# text; with how many such mistakes survive, if not one. tests/long/mutate.py compares the number, as an edit
# written like this one may stand elsewhere in the function, where it has to be caught.
SURVIVORS = {
    ("layers.encoder", "encoder_backward"): {("1", "-1"): EITHER_SIGN},
    ("layers.layernorm", "layernorm_backward"): {("-1", "-2"): (ANY_MINUS, 2)},
    ("layers.matmul", "matmul_backward"): {("-1", "-2"): (ANY_MINUS, 2)},
    ("layers.matmul", "matmul_backward_naive"): {("-1", "-2"): (ANY_MINUS, 2)},
    ("layers.attention", "attention_backward"): {
        ("-2", "2"): (EITHER_SIGN, 4),
        ("k[:, :, keys].swapaxes(-1, -2)", "k[:, :, keys].swapaxes(-2, -1)"): SYMMETRIC,
        ("att.swapaxes(-1, -2)", "att.swapaxes(-2, -1)"): SYMMETRIC,
        ("v[:, :, keys].swapaxes(-1, -2)", "v[:, :, keys].swapaxes(-2, -1)"): SYMMETRIC,
        ("dscores.swapaxes(-1, -2)", "dscores.swapaxes(-2, -1)"): SYMMETRIC,
    },
    ("layers.crossentropy", "crossentropy_backward"): {
        ("if not all_count(targets):", "if True:"): SHORTCUT,
        ("np.maximum(targets, 0)", "np.maximum(0, targets)"): SYMMETRIC,
    },
    ("model.backward", "_loss_backward"): {
        ("max(1, np.count_nonzero(counted))", "max(np.count_nonzero(counted), 1)"): SYMMETRIC,
        ("_may_share(kept, logits)", "_may_share(logits, kept)"): SYMMETRIC,
    },
    ("model.backward", "backward_pass"): {("if dx is None:", "if False:"): "nothing comes of None"},
    ("model.backward", "block_backward"): {("plus(dx, dbranch)", "plus(dbranch, dx)"): (SYMMETRIC, 2)},
    ("model.gpt2", "backward"): {
        ("if self.program is not None:", "if False:"): WHOLE,
        ("self", "scale"): (WHOLE, 3),
        ("scale", "accumulate"): WHOLE,
        ("accumulate", "on_ready"): WHOLE,
    },
    ("autodiff.ops.elementwise", "_divide"): {
        (None, "if False:"): SHORTCUT,
        ("b", "out"): SHORTCUT,
        ("const_value(b) != 0", "const_value(b) == 0"): SHORTCUT,
        ("const_value(b)", "b"): (ITSELF, 2),
        ("0", "1"): SHORTCUT,
    },
    ("autodiff.ops.elementwise", "_power"): {
        ("equal(a, 0.0)", "equal(0.0, a)"): SYMMETRIC,
        ("1.0", "2.0"): UNUSED,
    },
    ("autodiff.ops.elementwise", "_power_base"): {
        ("if is_scalar_const(b):", "if False:"): SHORTCUT,
        ("b", "a"): SHORTCUT,
        (
            "1.0 if n == 1 else (n, a) if n == 2 else (n, a ** (n - 1))",
            "(n, a) if n == 2 else (n, a ** (n - 1))",
        ): SHORTCUT,
        ("(n, a) if n == 2 else (n, a ** (n - 1))", "(n, a ** (n - 1))"): SHORTCUT,
        ("equal(b, 0.0)", "equal(0.0, b)"): SYMMETRIC,
        ("1.0", "2.0"): UNUSED,
        ("2", "-2"): SHORTCUT,
        ("1", "-1"): (SHORTCUT, 3),
    },
    ("autodiff.ops.elementwise", "partials"): {
        ("0.0", "1.0"): ("what is subtracted where the result is infinite is not read", 2),
    },
    ("autodiff.ops.elementwise", "or_zero"): {("1.0", "2.0"): UNUSED},
    ("autodiff.ops.elementwise", "is_sum_of"): {
        (
            None,
            "return -all((is_sum_of(term, a) for a in n.args))",
        ): "only its truth is read, and -True is true"
    },
    ("autodiff.ops.elementwise", "_same"): {
        ("depth - 1", "-1"): "bounds only how deep it is compared",
        ("depth - 1", "depth"): "bounds only how deep it is compared",
    },
    ("autodiff.ops.elementwise", "_sinc"): {
        ("1.0", "2.0"): UNUSED,
        ("1.0", "-1.0"): UNUSED,
        ("45360", "45361"): "changes the result by 1e-13",
    },
    ("autodiff.ops.elementwise", "_chosen"): {
        ("equal(a, b)", "equal(b, a)"): SYMMETRIC,
        ("equal(out, x)", "equal(x, out)"): SYMMETRIC,
        ("out", "a"): SAME_SHAPE,
    },
    ("autodiff.ops.elementwise", "_sign"): {(None, None): (REFUSES, 2)},
    ("autodiff.ops.elementwise", "_angle"): {(None, "(1.0 / x, -1j)"): REAL},
    ("autodiff.derive.differentiate", "pull"): {
        ("if op.jvp is not None:", "if True:"): REFUSES,
        ("fit(force(d), a) if need else None", "fit(force(d), a)"): SHORTCUT,
    },
    ("autodiff.derive.chain_rule", "force"): {("applied(entry())", "entry()"): MASKED},
    ("autodiff.derive.chain_rule", "pull_elementwise"): {
        ("factor_list(factors) if need else None", "factor_list(factors)"): SHORTCUT
    },
    ("autodiff.derive.chain_rule", "partials"): {("if rule is None:", "if False:"): REFUSES},
    ("autodiff.derive.chain_rule", "pull_factors"): {
        ("if arg.shape == node.shape:", "if False:"): SHORTCUT,
        ("node", "g"): (SAME_SHAPE, 3),
    },
    ("autodiff.derive.chain_rule", "times"): {
        ("if g.op != 'broadcast':", "if True:"): SHORTCUT,
        ("g.args[0] if f.shape == shape else g", "g"): SHORTCUT,
        ("g.args[0] if f.shape == shape else g", "g.args[0]"): SHORTCUT,
        ("f.shape == shape", "f.shape != shape"): SHORTCUT,
        ("shape", "g"): SHORTCUT,
        (
            "multiplied(g.args[0] if f.shape == shape else g, f)",
            "multiplied(f, g.args[0] if f.shape == shape else g)",
        ): SYMMETRIC,
    },
    ("autodiff.derive.chain_rule", "multiplied"): {
        ("is_number(f, 1.0)", "is_number(1.0, f)"): SYMMETRIC,
        ("is_number(f, -1.0)", "is_number(-1.0, f)"): SYMMETRIC,
        ("is_number(g.value, 1.0)", "is_number(1.0, g.value)"): SYMMETRIC,
        ("f", "g"): FACTOR_ONE,
        ("g", "f"): FACTOR_ONE,
    },
    ("autodiff.derive.chain_rule", "is_number"): {("x", "value"): "a node is equal to no number"},
    ("autodiff.derive.chain_rule", "pull_where"): {
        ("node", "g"): (SAME_SHAPE, 2),
        (None, "masked if same else masked.through(fitted, branch)"): SHORTCUT,
    },
    ("autodiff.derive.differentiate", "transposed_jvp"): {
        ("applied(c)", "c"): MASKED,
        ("applied(g)", "g"): MASKED,
    },
    ("autodiff.derive.chain_rule", "unbroadcast"): {
        ("if g.shape == x.shape:", "if False:"): SHORTCUT,
        ("if not new:", "if False:"): SHORTCUT,
        ("1", "-1"): "adds up an axis of length 1 too",
    },
    ("autodiff.derive.chain_rule", "total"): {
        ("if len(parts) == 1:", "if False:"): SHORTCUT,
        ("1", "-1"): SHORTCUT,
        ("values.get(False, 0.0)", "values.get(0.0, False)"): "0.0 and False are one key, and one number",
    },
    ("autodiff.derive.chain_rule", "plus"): {
        ("if p.op == 'broadcast' and p.shape == g.shape and (g.op != 'broadcast'):", "if False:"): SHORTCUT,
        ("p.shape == g.shape", "p.shape != g.shape"): SHORTCUT,
        ("g.op != 'broadcast'", "g.op == 'broadcast'"): SHORTCUT,
        ("g - p.args[0] if p.op == 'negative' else g + p", "g + p"): SHORTCUT,
        ("p", "g"): (SHORTCUT, 2),
        ("g", "p"): (SHORTCUT, 2),
    },
    ("autodiff.derive.chain_rule", "merge_assembles"): {
        ("if len(parts) == 1:", "if False:"): SHORTCUT,
        ("1", "-1"): SHORTCUT,
        ("0", "1"): SAME_SHAPE,
    },
    ("autodiff.derive.chain_rule", "push"): {("if op.kind == 'multilinear':", "if True:"): REFUSES},
    ("autodiff.ops.fft", "_transpose"): {
        ("g", "out"): SAME_SHAPE,
        ("const(1.0 / count)", "1.0 / count"): ITSELF,
        ("const(count)", "count"): ITSELF,
    },
    ("autodiff.ops.fft", "half_spectrum_counts"): {
        ("2", "-2"): "odd is odd for a negative divisor too",
        ("0", "1"): "only the dtype of that array is read",
        ("-1", "-2"): ANY_MINUS,
    },
    ("autodiff.ops.index", "_scatter_transpose"): {
        ("if not taken.size:", "if False:"): SHORTCUT,
        ("return taken", "return -taken"): "it has no entries",
        (
            "const(np.arange(taken.size).reshape(taken.shape))",
            "np.arange(taken.size).reshape(taken.shape)",
        ): ITSELF,
        (
            "equal(apply('gather', numbers, *arrays, spec=spec), number)",
            "equal(number, apply('gather', numbers, *arrays, spec=spec))",
        ): SYMMETRIC,
        ("no_gradient(arrays)", "arrays"): NOT_READ,
    },
    ("autodiff.ops.index", "no_gradient"): {(None, None): NOT_READ},
    ("autodiff.ops.linalg", "_slogdet_jvp"): {("if x.dtype.kind != 'c':", "if False:"): REAL},
    ("autodiff.ops.linalg", "eye"): {("real_dtype(dtype)", "dtype"): REAL},
    ("autodiff.ops.linalg", "lower"): {
        ("real_dtype(dtype)", "dtype"): REAL,
        (None, "np.tril(np.ones((n, n), d), -1) + np.asarray(diagonal, d) * np.eye(n, dtype=d)"): ITSELF,
    },
    ("autodiff.ops.linalg", "_cholesky_jvp"): {
        ("x", "t"): (SAME_SHAPE, 2),
        ("-1", "1"): ("the last two axes are of one length", 1),
        ("-1", "-2"): ("the last two axes are of one length", 1),
    },
    ("autodiff.ops.linalg", "_qr_jvp"): {
        ("x", "t"): (SAME_SHAPE, 4),
        ("1", "-1"): TWO,
        ("if x.shape[-1] > k:", "if True:"): SHORTCUT,
    },
    ("autodiff.ops.linalg", "hermitian"): {
        ("-1", "1"): ("the last two axes are of one length", 2),
        ("-1", "-2"): ("the last two axes are of one length", 2),
    },
    ("autodiff.ops.linalg", "diagonal"): {
        ("-1", "1"): ("the last two axes are of one length", 2),
        ("-1", "-2"): ("the last two axes are of one length", 2),
    },
    ("autodiff.ops.linalg", "_eigh_jvp"): {
        ("1", "-1"): TWO,
        (
            "real(diagonal(inner))",
            "diagonal(inner)",
        ): "the chain rule takes the real part where the value is real",
    },
    ("autodiff.ops.linalg", "_eig_jvp"): {
        ("1", "-1"): TWO,
        (
            "real(conjugate(v) * dv)",
            "conjugate(v) * dv",
        ): "the turn by a phase, which comes next, takes the imaginary part away",
        ("if v.dtype.kind == 'c':", "if True:"): REAL,
        ("absolute(v)", "v"): "any entry that is not 0 settles the phase",
    },
    ("autodiff.ops.linalg", "_svd_jvp"): {
        ("if x.dtype.kind == 'c':", "if True:"): REAL,
        ("if m > k:", "if True:"): "adds what is zero for a square matrix",
        ("if n > k:", "if True:"): "adds what is zero for a square matrix",
        ("return (_no_full_vectors, real(diagonal(adjoint(u) @ t @ adjoint(vh))), _no_full_vectors)", None): (
            REFUSES,
            2,
        ),
    },
    ("autodiff.ops.matrix", "_matmul_transpose"): {
        ("if b.ndim > 2:", "if True:"): SHORTCUT,
        ("b", "g"): SHORTCUT,
        ("2", "-2"): SHORTCUT,
        ("out", "a"): SAME_SHAPE,
    },
    ("autodiff.ops.reduce", "_prod_jvp"): {
        ("if n % 2:", "if True:"): "joins an empty piece",
        ("2", "-2"): "odd is odd for a negative divisor too",
        ("-1", "1"): (EITHER_SIGN, 2),
    },
    ("autodiff.ops.reduce", "_cumprod_jvp"): {("n - reach", "-reach"): "counts from the end: the same place"},
}
EXPLAINED = {(*where, *edit): why for where, rows in SURVIVORS.items() for edit, why in rows.items()}


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
