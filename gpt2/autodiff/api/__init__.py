"""What a user calls: grad, vjp, jvp, jacobian, compile, custom rules, scan, parallel_map."""
