"""Solutions of equations and their derivatives: root, fixed_point, custom_linear_solve."""
