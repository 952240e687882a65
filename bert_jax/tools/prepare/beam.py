"""Prepares a corpus as an Apache Beam pipeline, for text that is too much for one machine.

    python -m bert_jax.tools.prepare --beam --input ... --vocab V --out D [--runner NAME]

Other arguments go to Beam: the runner (DirectRunner if none is named) and its options. Documents
are the same as without Beam, but the place of one in the input decides its shard. --out, --vocab,
lexicons and inputs must be where all workers see them.
"""

import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax.corpus import store
from bert_jax.corpus.shards import Shard, finish
from bert_jax.errors import InputError, log
from bert_jax.files import Path, write_whole
from bert_jax.text import duplicates
from bert_jax.tools.arguments import check_writable
from bert_jax.tools.prepare import steps as prepare_steps

try:
  import apache_beam as beam
  from apache_beam.options.pipeline_options import PipelineOptions
except ImportError:
  raise InputError('--beam needs Apache Beam; run: pip install apache-beam') from None


def prepare(
  settings: prepare_steps.Settings, out: Path | str, arguments: Sequence[str], shards: int = 0
) -> dict[str, Any]:
  """Prepares a corpus on the runner of Beam's `arguments`. shards: 0: by the size of the files."""
  out = Path(out).expanduser().absolute()
  check_writable(out)
  shards = shards or max(1, round(sum(settings.file_sizes()) / (settings.shard_mb << 20)))
  tokenizer, plan = prepare_steps.begin(settings, out, f'Beam in {shards} shards')
  settings = settings._replace(vocab=str(out))  # where all workers see it
  if (out / store.META).is_file():
    log.info('%s is whole already', out)
    return store.read_meta(out)
  # A name for each thing that a function below uses: Beam pickles all that they hold.
  counts_file, vocab_size = out / '.counts.json', tokenizer.vocab_size
  with beam.Pipeline(options=PipelineOptions(list(arguments))) as pipeline:
    made = (
      pipeline
      | beam.Create([*enumerate(settings.inputs)])
      | 'SpreadFiles' >> beam.Reshuffle()
      | beam.FlatMap(_cut, settings)
      | 'SpreadBlocks' >> beam.Reshuffle()
      | beam.ParDo(_Make(settings)).with_outputs('counts', main='items')
    )
    items, counts = made.items, [made.counts]
    if settings.duplicates != 'keep':
      items, removed = _without_exact(items)
      counts.append(removed)
    if settings.duplicates == 'near':
      items, removed = _without_near(items)
      counts.append(removed)
    _ = (
      counts
      | 'AllCounts' >> beam.Flatten()
      | beam.CombineGlobally(_add_up)
      | beam.Map(lambda total: write_whole(counts_file, json.dumps(total)))
    )
    _ = (
      items
      | 'GroupShards' >> beam.GroupBy(lambda pair: zlib.crc32(repr(pair[0]).encode()) % shards)
      | beam.MapTuple(lambda number, pairs: _write(out, number, pairs, vocab_size))
    )
  for number in range(shards):
    if not (store.shard_path(out, number) / store.FACTS).is_file():  # it got no document
      _write(out, number, [], tokenizer.vocab_size)
  meta = finish(out, plan, tokenizer, json.loads(counts_file.read_text()))
  counts_file.unlink()
  return meta


def _cut(numbered, settings):
  """Yields (place, language number, portion) of an input (number, (language, path)). A document's
  place, by which it is sorted: (number of its file, first line or row of its portion, number in the
  portion)."""
  number, (language, path) = numbered
  for portion in settings.portions(path):
    yield (number, portion.first), settings.languages.index(language), portion


class _Make(beam.DoFn):
  """Makes (place, Item) of each document of a portion, and counts, from what _cut yields."""

  def __init__(self, settings: prepare_steps.Settings):
    self.settings = settings

  def setup(self) -> None:
    self.maker = prepare_steps.Maker(self.settings)

  def process(self, element: Any) -> Iterator[Any]:
    place, language, portion = element
    items, counts = self.maker(language, portion)
    yield beam.pvalue.TaggedOutput('counts', dict(counts))
    for k, item in enumerate(items):
      yield (*place, k), item


def _without_exact(items):
  """Drops all but the first of equal texts: (its (place, Item), counts of the others)."""
  groups = (
    items
    | 'GroupTexts' >> beam.GroupBy(lambda pair: pair[1].key)
    | 'InOrder' >> beam.MapTuple(lambda _, pairs: sorted(pairs, key=lambda pair: pair[0]))
  )
  others = groups | 'Others' >> beam.Map(lambda pairs: {'exact_duplicates': len(pairs) - 1})
  return groups | 'First' >> beam.Map(lambda pairs: pairs[0]), others


def _without_near(items):
  """Drops documents near an earlier one: ((place, Item) of the rest, counts of the dropped)."""
  signer = duplicates.Signer()
  near = (
    items
    | beam.FlatMap(lambda p: [(b, (p[0], p[1].signature)) for b in signer.bands(p[1].signature)])
    | 'GroupBands' >> beam.GroupByKey()
    | beam.FlatMap(lambda band: duplicates.near_of_band(band[1]))
    | beam.Distinct()
    | beam.Map(lambda place: (place, True))
  )
  joined = {'items': items, 'near': near} | beam.CoGroupByKey()
  kept = joined | 'Far' >> beam.Filter(lambda pair: not pair[1]['near'])
  removed = near | beam.Map(lambda pair: {'near_duplicates': 1})
  return kept | beam.MapTuple(lambda place, groups: (place, groups['items'][0])), removed


def _write(out, number, pairs, vocab_size):
  shard = Shard(out, number, vocab_size)
  for _, item in sorted(pairs, key=lambda pair: pair[0]):
    shard.write(item)
  shard.close({})


def _add_up(all_counts):
  total = Counter()
  for counts in all_counts:
    total.update(counts)
  return dict(total)
