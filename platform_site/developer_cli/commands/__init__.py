"""The commands, in modules by subject. `main` registers them."""
