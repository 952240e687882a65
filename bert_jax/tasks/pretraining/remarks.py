"""Warns, before the first step, of a corpus and settings that do not go well together.

Pieces are counted in some records, accents and lines at the beginning of some files, which takes
seconds for any corpus. Of a prepared corpus, which has no text, `tools.prepare` warns.
"""

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax.corpus import prepared
from bert_jax.corpus.tokenized import DamagedRecord, Piece, spaced
from bert_jax.objectives.masking import POLICIES, mask_tokens
from bert_jax.rows.language_mixture import Mixture
from bert_jax.rows.sentence_pairs import PAIRS
from bert_jax.tasks.remarks import RECORDS, about_accents, about_vocabulary, cased, pieces
from bert_jax.text import documents, files
from bert_jax.text.sentences import split_sentences
from bert_jax.timeline import values_of
from bert_jax.tokenizers import Tokenizer

# The shares above which there is a warning: random pairs, documents of one sentence, lines that go
# on in the next line.
RANDOM, ALONE, WRAPPED = 0.7, 0.5, 0.3
MASKED = 0.25  # how far the share of masked tokens may be from the one asked for, as a share of it
MASKED_ROWS = 64  # rows that are masked to find out
PER_LINE = 1.5  # sentences, up to which a line counts as one sentence
FILES, CHARACTERS = 16, 500_000  # the size of a sample

_ENDS = re.compile(r'[.!?…。！？।॥؟۔:;"”’»)\]]\s*$')


def remarks(config: ConfigDict, tokenizer: Tokenizer, sources: Mapping[str, Any]) -> list[str]:
  """Warnings about the training data, the vocabulary and the settings of a run on a corpus."""
  source = sources['train']
  parts = source.parts if isinstance(source, Mixture) else {'': source}
  samples = {name: list(records(rows.sample)) for name, rows in parts.items()}
  cuts = {name: pieces((ids for ids, _ in x), tokenizer) for name, x in samples.items()}
  specs = dict(files.parts(config.data.train, config.corpus.languages))
  corpus, data = config.corpus, config.data
  how = corpus.format, corpus.text_field, data.skip_damaged, 'train', data.text_encoding
  texts = {name: sample(spec, *how) for name, spec in specs.items()}
  another = ''
  if any(map(prepared.is_prepared, specs.values())):
    another = 'prepare the corpus with another --vocab (tools.vocab trains one)'
  out = about_accents(tokenizer, texts, cased(config))
  out += about_vocabulary(config, tokenizer, cuts, another)
  out += about_masks(config, tokenizer, list(itertools.chain(*samples.values())))
  return out + about_pairs(config, parts, texts)


def about_masks(
  config: ConfigDict, tokenizer: Tokenizer, records: Sequence[Piece]
) -> Iterator[str]:
  """Warns of policies that hide another share of a text than asked, since their units are long."""
  policies = [('masking', policy) for policy in values_of(config.masking.policy)]
  policies.append(('eval_masking', config.eval_masking.policy))
  for block, policy in policies if records else ():
    rate = config[block].masked_lm_prob
    share = masked(config, tokenizer, records, policy, rate) if POLICIES.get(policy) else rate
    if abs(share / rate - 1) > MASKED:
      hides = f'{block}.policy={policy} hides {share:.1%} of the tokens, where {rate:.0%} are asked'
      long = 'its units are too long, as are the words of text without blanks to this vocabulary'
      fixes = f'another tokenizer.kind, for Chinese corpus.segmenter, or {block}.policy=token'
      yield f'{hides} for: {long}; use {fixes}.'


def masked(
  config: ConfigDict, tokenizer: Tokenizer, records: Sequence[Piece], policy: str, rate: float
) -> float:
  """The share of the tokens of records that a policy hides, in full rows."""
  T = config.data.seq_length
  pieces = [(*piece, np.full(len(piece[0]), k, np.int32)) for k, piece in enumerate(records, 1)]
  ids, starts, segments = (np.concatenate(x)[: MASKED_ROWS * T] for x in zip(*pieces))
  rows = (np.pad(x, (0, -len(x) % T)).reshape(-1, T) for x in (ids, segments, starts))
  how: Any = {'special_ids': tokenizer.special_ids, 'vocab_size': tokenizer.vocab_size}
  how |= {'policies': (policy,), 'masked_lm_prob': rate, 'max_predictions': T, 'mask_id': 0}
  how |= {'mask_share': 0.8, 'random_share': 0.1}
  *_, masks_BK = mask_tokens(jax.random.key(0), *map(jax.numpy.asarray, rows), **how)
  return float(masks_BK.sum()) / len(ids)


def about_pairs(
  config: ConfigDict, parts: Mapping[str, Any], texts: Mapping[str, list[list[str]]]
) -> list[str]:
  """Warnings about the lines of the text and the sentence pairs made of them."""
  nsp = config.corpus.rows == 'nsp' and config.loss.nsp_weight > 0
  totals = sum((Counter(rows.totals) for rows in parts.values()), Counter())
  random = totals['ones'] / max(1, totals['examples'])
  alone = totals['alone'] / max(1, totals['documents'])
  lines_are, form = about_lines(texts, config.corpus.format)
  fix = f'corpus.format={form} makes sentences of them'
  if nsp and random > RANDOM:
    because = lines_are or 'a sentence often fills a row'
    if alone > ALONE and not lines_are:
      because = f'{alone:.0%} of the documents have one sentence (a blank line ends a document)'
    learns = ', so that there is hardly anything to learn from them' * (random > 0.9)
    fix = fix if form else 'longer rows (data.seq_length) have fewer'
    fixes = f'{fix}, corpus.rows=full with loss.nsp_weight=0 has no pairs'
    return [f'{random:.0%} of the NSP pairs are random{learns}: {because}; {fixes}.']
  if lines_are and config.corpus.rows in (*PAIRS, 'single'):
    return [f'{lines_are}; {fix}.']
  return []


def about_lines(texts: Mapping[str, list[list[str]]], form: str) -> tuple[str, str]:
  """Finds lines that do not fit their form: (what is wrong, the format to set), or ('', '').
  texts: {language: documents}, see sample."""
  if form not in ('auto', 'sentences'):
    return '', ''
  per_line, wrapped = lines([x for documents in texts.values() for x in documents])
  if wrapped > WRAPPED:
    fault = f'{wrapped:.0%} of the lines go on in the next one, and each counts as a sentence'
    return fault, 'paragraphs'
  few = f'a line has {per_line:.1f} sentences on average and counts as one', 'lines'
  return few if per_line > PER_LINE else ('', '')


def sample(spec: str, form: str, text_field: str, skip: bool = False, *how: str) -> list[list[str]]:
  """Reads some documents, lists of sentences, from the beginnings of some files; [] for a prepared
  corpus and the embedded documentation. Other arguments, how = split, encoding: see documents."""
  if not spec or prepared.is_prepared(spec):
    return []
  paths, out = documents.sources(spec, form), []
  chosen = [paths[i] for i in spaced(len(paths), FILES)]
  for path in chosen:
    room, of_rows = CHARACTERS // len(chosen), (text_field, Counter(), skip)
    blocks = documents.blocks(path, form, *how, text_field=text_field)
    for document in (x for block in blocks for x in documents.read_block(block, *of_rows)):
      ends = itertools.accumulate(map(len, document.sentences))
      out.append([s for s, end in zip(document.sentences, ends) if end - len(s) < room])
      room -= sum(map(len, out[-1]))
      if room <= 0:
        break
  return out


def lines(sample: list[list[str]]) -> tuple[float, float]:
  """Counts sentences in lines: (mean of a line, share of lines that go on in the next line)."""
  sentences = list(itertools.chain(*sample))
  split = sum(len(split_sentences(sentence)) for sentence in sentences)
  pairs = [pair for texts in sample for pair in itertools.pairwise(texts)]
  goes_on = sum(b[0].islower() and not _ENDS.search(a) for a, b in pairs)
  return split / max(1, len(sentences)), goes_on / max(1, len(pairs))


def records(corpus: Any) -> Iterator[Piece]:
  """The piece ids of some records of a corpus, and where units start in them."""
  for i in spaced(len(corpus.records), RECORDS):
    with contextlib.suppress(DamagedRecord):
      yield corpus.read(int(corpus.records[i]))
