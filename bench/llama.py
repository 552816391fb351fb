"""Time a training step of examples/llama.py beside the same model in PyTorch: bench.step with other sizes.

python -m bench.llama
python -m bench.llama --sizes llama-8x512-B4T256-V32000 --threads 1,2
"""

from bench import step
from bench.harness import program, sizes

ABOUT = "Time a training step of examples/llama.py beside the same model in PyTorch."
CONTENDERS = ("torch-tuned", "torch-compile-tuned", "whole", "shares", "peak")


def main(argv):
    return step.main(argv, "bench.llama", ABOUT, next(iter(sizes.LLAMAS)), CONTENDERS)


if __name__ == "__main__":
    program.run(main)
