"""The machine's peak as a contender: a step's operations as large products, in the form that is fastest here.

It trains nothing. Beside the others in a contest it says how fast the machine is in those minutes, so that a
step's share of the peak does not depend on an hour in which the peak was measured.
"""

from bench.harness.contenders import Missing
from bench.harness.rates import fastest_product
from bench.harness.work import step_flops

# Seconds of products, at most: of a longer step a share is done, and the time is scaled up.
LONGEST_S = 0.5


class Products:
    """As many equal products as have about the operations of a step, or of a share of it.

    share  how much of a step's operations step() does, exactly: more than 1 where one product is too much
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


llama = training  # products are products


def layer(case, variant, threads):
    raise Missing("it stands for the products of a whole step; bench.roofline has the layers")
