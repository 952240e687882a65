"""Text -> tokens -> rows -> global arrays."""
