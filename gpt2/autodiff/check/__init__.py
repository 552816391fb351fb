"""Whether gradients are right: check_grads, check_backward, and what a wrong one suggests."""
