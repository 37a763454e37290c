"""Members to values and back, by extension."""
