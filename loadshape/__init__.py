"""loadshape."""
