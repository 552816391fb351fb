"""The exercises: each a layer with its mathematics, forward, backward (the solution) and two hints."""

ORDER = ("residual", "matmul", "gelu", "layernorm", "crossentropy", "encoder", "attention")
