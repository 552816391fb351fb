"""GPT-2 as plain functions of an array module: jax.numpy or autograd.numpy."""

import math


def layers(np, logsumexp):
    """The seven layers' forward functions by name, written with `np`."""

    def encoder(tokens, wte, wpe):
        return wte[tokens] + wpe[: tokens.shape[1]]

    def layernorm(inp, weight, bias):
        x = inp - np.mean(inp, axis=-1, keepdims=True)
        variance = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(variance + 1e-5) * weight + bias

    def matmul(inp, weight, bias):
        out = np.dot(np.reshape(inp, (-1, inp.shape[-1])), weight.T)
        out = out if bias is None else out + bias
        return np.reshape(out, (*inp.shape[:-1], weight.shape[0]))

    def attention(qkv, *, num_heads):
        B, T, C3 = qkv.shape
        HS = C3 // 3 // num_heads
        parts = np.transpose(np.reshape(qkv, (B, T, 3, num_heads, HS)), (2, 0, 3, 1, 4))
        q, k, v = parts[0], parts[1], parts[2]  # (B, NH, T, HS)
        scores = np.matmul(q, np.swapaxes(k, -1, -2)) * (1.0 / math.sqrt(HS))  # (B, NH, T, T)
        scores = np.where(np.tri(T, dtype=bool), scores, np.array(-1e30, scores.dtype))
        att = np.exp(scores - logsumexp(scores, axis=-1, keepdims=True))
        return np.reshape(np.transpose(np.matmul(att, v), (0, 2, 1, 3)), (B, T, C3 // 3))

    def gelu(inp):
        return 0.5 * inp * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (inp + 0.044715 * inp * inp * inp)))

    def residual(a, b):
        return a + b

    def crossentropy(logits, targets):
        rows = np.reshape(logits, (-1, logits.shape[-1]))
        at_target = rows[np.arange(rows.shape[0]), np.reshape(targets, (-1,))]
        return np.reshape(logsumexp(rows, axis=-1) - at_target, targets.shape)

    return {f.__name__: f for f in (encoder, layernorm, matmul, attention, gelu, residual, crossentropy)}


def loss_function(np, table, config):
    """loss(params, tokens, targets) in nats per token. table is of `layers`, params as of `by_block`."""
    layernorm, matmul, attention, gelu = (table[n] for n in ("layernorm", "matmul", "attention", "gelu"))

    def loss(p, tokens, targets):
        x = table["encoder"](tokens, p["wte"], p["wpe"])
        for l in range(config.n_layer):
            h = layernorm(x, p["ln1w"][l], p["ln1b"][l])
            h = attention(matmul(h, p["qkvw"][l], p["qkvb"][l]), num_heads=config.n_head)
            x = x + matmul(h, p["attprojw"][l], p["attprojb"][l])
            h = layernorm(x, p["ln2w"][l], p["ln2b"][l])
            h = gelu(matmul(h, p["fcw"][l], p["fcb"][l]))
            x = x + matmul(h, p["fcprojw"][l], p["fcprojb"][l])
        logits = matmul(layernorm(x, p["lnfw"], p["lnfb"]), p["wte"], None)
        return np.mean(table["crossentropy"](logits, targets))

    return loss


def by_block(weights, config):
    """Weights with the stacked tensors as lists, one array a block."""
    return {
        name: tensor if name in ("wte", "wpe", "lnfw", "lnfb") else [tensor[l] for l in range(config.n_layer)]
        for name, tensor in weights.items()
    }
