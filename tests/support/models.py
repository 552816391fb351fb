"""What tests of models share: random parameters, the slope of the loss, greedy text."""

import numpy as np

from gpt2.model import GPT2


def random_model(config, backward=None, **options):
    """A model none of whose parameters has a special value: no gain is 1, no bias 0."""
    model = GPT2(config, backward, seed=1, **options)
    model.flat_params += 0.2 * np.random.default_rng(2).standard_normal(model.flat_params.shape)
    return model


def slope(model, parameter, direction, *batch, h=1e-5):
    """Central difference of the loss along a direction of `parameter`, an array of the model's parameters.

    It errs by h^2 of the third derivative.
    """
    start, losses = parameter.copy(), []
    for step in (h, -h):
        parameter[...] = start + step * direction
        losses.append(model.loss(*batch))
    parameter[...] = start
    return (losses[0] - losses[1]) / (2 * h)


def greedy(model, tokens, count):
    """The likeliest next token, `count` times, each from a whole forward pass."""
    text = list(tokens)
    for _ in range(count):
        text.append(int(np.argmax(model.forward(np.array([text]))[0, -1])))
    return text[len(tokens) :]
