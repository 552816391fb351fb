"""Custom derivative rules: custom_vjp, custom_jvp, checkpoint, stop_gradient, callback."""
