"""Checks of gradients: check_grads, check_backward, and the likely cause of a wrong one."""
