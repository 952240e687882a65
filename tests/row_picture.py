"""Draws texts as the packed row that a model reads: pieces, positions, masks, and who sees whom.

    python tests/row_picture.py --model W --out row.png 'One text.' 'Another one.'

--model is a run's workdir or a Hugging Face folder. Each text is an example of the row, and one
with a tab in it is a pair. Of a run that learns masked words, pieces are hidden by its own masking
policy and rate, drawn by --seed; what is to be predicted stands below. The attention shown is what
packing allows, each token to all of its own example; windows and causality are not drawn.
"""

import logging
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))

from bert_jax.command_line import command_line, command_parser
from bert_jax.corpus.units import Encoder
from bert_jax.errors import InputError
from bert_jax.objectives.masking import mask_tokens
from bert_jax.rows.row_arrays import build_row
from bert_jax.tasks import TASKS
from bert_jax.workdir import trained

log = logging.getLogger('bert_jax')

MOST = 128  # tokens; more could not be read in a picture
COLUMNS = 12  # tokens in a line of it
TINTS = '#cfe3f5', '#fbe0b8', '#d5ecc8', '#ead3ec', '#f6d0ce'  # of the examples, in turn
MASKED, PADDING = '#40566b', '#f2f2f2'


class PackedRow(NamedTuple):
  """A row of T tokens: what a model reads, and what it is to predict."""

  pieces: list  # [T], after masking
  hidden: dict  # {place: the piece that is to be predicted there}
  positions: np.ndarray  # [T], from 0 in each example
  segments: np.ndarray  # [T]: 1, 2, .. for each example, 0: padding

  @property
  def sees(self):
    """[T, T] bool: may the token of a row attend to that of a column?"""
    return (self.segments[:, None] == self.segments) & (self.segments > 0)


def packed_row(model, texts, seed=0):
  """The PackedRow of texts, as a trained.Trained reads them; InputError if they are too long."""
  encode, counts = Encoder(model.tokenizer), Counter()
  examples = []
  for text in texts:
    parts = encode([[part] for part in text.split('\t')], counts)
    if not 1 <= len(parts) <= 2 or None in parts:
      raise InputError(f'{text!r} has no words, or is more than a text or two with a tab between.')
    examples.append([(part.tokens, part.starts) for part in parts])
  length = sum(1 + sum(len(ids) + 1 for ids, _ in parts) for parts in examples)
  if length > MOST:
    raise InputError(f'the texts have {length} tokens; a picture shows {MOST}, so give fewer.')
  row = build_row(model.tokenizer, examples, -(-length // COLUMNS) * COLUMNS, slots=len(examples))
  ids, hidden, pieces = row['input_ids'], {}, model.tokenizer.pieces
  if 'masking' in model.config:
    objective = TASKS[model.config.objective].objective(model.config, model.tokenizer)
    arrays = (row[name][None] for name in ('input_ids', 'segment_ids', 'unit_starts'))
    made = jax.device_get(mask_tokens(jax.random.key(seed), *arrays, 0, **objective.masking))
    (ids,), (places,), (labels,), (weights,) = made
    hidden = {int(at): pieces[i] for at, i, weight in zip(places, labels, weights) if weight}
  return PackedRow([pieces[i] for i in ids], hidden, row['position_ids'], row['segment_ids'])


def draw(row, texts, path):
  """Writes the picture of a PackedRow to path; its ending says in which format."""
  from matplotlib.figure import Figure
  from matplotlib.patches import Rectangle

  lines = -(-len(row.pieces) // COLUMNS)
  height = 1.2 + 0.27 * len(texts) + 0.75 * lines
  figure = Figure(figsize=(13, max(height, 3.6)), layout='constrained')
  cells, matrix = figure.subplots(1, 2, width_ratios=(3.2, 1))
  tint = lambda segment: TINTS[(segment - 1) % len(TINTS)] if segment else PADDING

  def write(x, y, text, size, color='black', **look):
    cells.text(x, y, text.replace('$', r'\$'), fontsize=size, va='center', color=color, **look)

  for i, text in enumerate(texts):
    write(0, i * 0.42, f'text {i + 1}', 10, '0.35')
    box = {'facecolor': tint(i + 1), 'edgecolor': 'none', 'pad': 2}
    write(1, i * 0.42, text.replace('\t', '   |   '), 11, bbox=box)
  top = 0.42 * len(texts) + 0.35
  for place, piece in enumerate(row.pieces):
    x, y = place % COLUMNS, top + 1.15 * (place // COLUMNS)
    is_hidden = place in row.hidden
    color = MASKED if is_hidden else tint(row.segments[place])
    cells.add_patch(Rectangle((x, y), 0.96, 0.5, facecolor=color, edgecolor='none'))
    size, color = min(10, 90 / max(1, len(piece))), 'white' if is_hidden else 'black'
    write(x + 0.48, y + 0.25, piece, size, color, ha='center')
    if row.segments[place]:
      write(x + 0.48, y - 0.1, str(row.positions[place]), 7, '0.45', ha='center')
    if is_hidden:
      write(x + 0.48, y + 0.68, row.hidden[place], 10, MASKED, ha='center', fontstyle='italic')
  cells.set(xlim=(0, COLUMNS), ylim=(top + 1.15 * lines, -0.35))
  cells.axis('off')
  shown = np.where(row.sees, row.segments, 0)
  colors = np.ones((*shown.shape, 3))
  for segment in range(1, row.segments.max() + 1):
    rgb = [int(tint(segment)[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    colors[shown == segment] = np.array(rgb) * 0.85
  matrix.imshow(colors, interpolation='nearest')
  matrix.set(title='which token sees which', xlabel='key', ylabel='query')
  matrix.tick_params(labelsize=8)
  try:
    figure.savefig(path, dpi=110)
  except (OSError, ValueError) as error:
    raise InputError(f'--out {path} cannot be written: {error}.') from None


def main(argv=None):
  parser = command_parser('tools.row_picture', __doc__)
  add = parser.add_argument
  add('text', nargs='+', help='an example of the row; a tab makes it a pair')
  add('--model', required=True, help="a run's workdir, or a Hugging Face folder")
  add('--out', required=True, metavar='FILE', help='a picture: .png, .svg or .pdf')
  add('--seed', type=int, default=0, help='of the masks')
  args = parser.parse_args(argv)
  with command_line():
    row = packed_row(trained.load(args.model), args.text, args.seed)
    draw(row, args.text, args.out)
    log.info('drawn to %s: %d tokens, %d hidden', args.out, len(row.pieces), len(row.hidden))


if __name__ == '__main__':
  main()
