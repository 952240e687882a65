"""Tables as text."""


def aligned(rows):
  """The lines of a table; rows: tuples of strings, all of one length, the header among them."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  return ['  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
