"""Compatibility with other tools: gpt2.autodiff.compat.autograd has HIPS autograd's names."""
