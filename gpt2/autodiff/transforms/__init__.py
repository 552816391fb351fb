"""What derives: grad, vjp, jvp, hvp, jacobian, hessian, vmap."""
