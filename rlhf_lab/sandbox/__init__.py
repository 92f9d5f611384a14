"""Where code of a model runs."""
