"""The machine's peak as a contender: a step's FLOPs as large matrix products, in their fastest form.

It trains nothing. As it runs in the same rounds as the other contenders, their share of the peak does not
depend on how fast the machine was at another time.
"""

from bench.harness.rates import fastest_product
from bench.harness.sizes import step_flops

# Seconds of products, at most: for longer steps a share is computed, and its time is scaled up.
LONGEST_S = 0.5


class Products:
    """Equal products with about the FLOPs of a step, or of a share of it.

    share  the exact share of a step's FLOPs that step() does; more than 1 if a single product has more
    """

    def __init__(self, size, threads):
        self.product, rate = fastest_product(threads)
        wanted = min(step_flops(size), LONGEST_S * rate)
        self.count = max(1, round(wanted / self.product.flops))
        self.share = self.count * self.product.flops / step_flops(size)
        self.about = f"{self.product.title}, {rate / 1e9:.0f} GFLOP/s at best when it was chosen"

    def step(self, tokens, targets):
        for _ in range(self.count):
            self.product()


def training(size, variant, threads):
    return Products(size, threads)


llama = training
