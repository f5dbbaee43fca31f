"""Find the inputs, and decide what a build makes of them."""
