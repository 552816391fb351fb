"""Programs that were written for another tool: gpt2.autodiff.compat.autograd has HIPS autograd's names."""
