"""Programs that others wrote for HIPS autograd, run under gpt2.autodiff.compat.autograd."""
