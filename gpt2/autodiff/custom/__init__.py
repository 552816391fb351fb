"""Functions with rules of their own: custom_vjp, custom_jvp, checkpoint, stop_gradient, callback."""
