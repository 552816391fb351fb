"""The transforms: grad, vjp, jvp, hvp, jacobian, hessian, vmap."""
