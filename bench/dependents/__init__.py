"""Third-party programs written for HIPS autograd, run under gpt2.autodiff.compat.autograd."""
