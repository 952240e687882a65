"""Warns, before the first step, of a vocabulary that cuts a corpus badly, of lines that are no
sentences and, of pairs, of documents of one. All is counted in a sample, which takes seconds."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.corpus import loading, store
from bert_jax.corpus.tokenized import Corpus, spaced
from bert_jax.files import Path
from bert_jax.rows.language_mixture import Mixture
from bert_jax.rows.sentence_pairs import PAIRS
from bert_jax.tasks.remarks import RECORDS, about, about_vocabulary, pieces
from bert_jax.text import files
from bert_jax.text.sentences import split_sentences
from bert_jax.tokenizers import Tokenizer

Document = tuple[str, list[str]]  # its name, such as a.txt:12, and its sentences

CHARACTERS = 500_000  # of a language that are looked at

_ENDS = re.compile(r'[.!?…。！？।॥؟۔:;"”’»)\]]\s*$')


def remarks(config: ConfigDict, tokenizer: Tokenizer, sources: Mapping[str, Any]) -> list[str]:
  """Warnings about the training data and the vocabulary of a run on a corpus."""
  parts = _parts(sources['train'])
  cuts = {name: pieces(records(rows.sample), tokenizer) for name, rows in parts.items()}
  out = about_vocabulary(config, cuts)
  totals = [rows.totals for rows in parts.values()]
  held_out = getattr(sources.get('eval'), 'totals', None)  # None: there is none, or a Mixture
  if held_out:
    fix = 'evaluate on more text (data.eval or, where that is empty, corpus.eval_share)'
    out += about('held_out', 3 * held_out['text_tokens'] ** -0.5, fix)
    if not config.data.eval:
      both = held_out['text_tokens'] + sum(total['text_tokens'] for total in totals)
      fix = 'give more documents, or data.eval'
      out += about('large_share', held_out['text_tokens'] / both, fix)
  if config.data.eval and all(rows.units == 1 for rows in parts.values()):
    known = np.isin(_texts(_parts(sources['eval'])), _texts(parts))
    out += about('documents', known.sum(), 'leave them out of data.train or data.eval')
  cut, kept = (sum(total[name] for total in totals) for name in ('cut_tokens', 'tokens'))
  out += about('cut_tokens', cut / max(1, cut + kept), 'raise data.seq_length')
  sampled = []
  for _, spec in files.parts(config.data.train, config.corpus.languages):
    if spec and not store.is_prepared(spec):
      sampled += sample(loading.documents(config, spec, Counter(), 'train'))
  out += about_files(sampled, config.corpus.format)
  if config.corpus.rows in (*PAIRS, 'single'):
    out += about_lines(sampled, config.corpus.format)
    if config.corpus.rows in PAIRS:
      alone = sum(len(sentences) == 1 for _, sentences in sampled) / max(1, len(sampled))
      out += about('alone', alone, 'corpus.rows=full and loss.nsp_weight=0 train without pairs')
  return out


def _parts(source):
  """{language: its Rows} of a source."""
  return source.parts if isinstance(source, Mixture) else {'': source}


def _texts(parts):
  """A number for each document of some Rows (of those of several units, of one), which equal texts
  share."""
  samples = [rows.sample for rows in parts.values()]
  return np.concatenate([x.hashes.astype(np.int64) << 31 | x.sizes[:, 0] for x in samples])


def sample(documents: Iterable[Document]) -> list[Document]:
  """The first documents, of about CHARACTERS in all."""
  out, size = [], 0
  for name, sentences in documents:
    out.append((name, sentences))
    size += sum(map(len, sentences))
    if size > CHARACTERS:
      break
  return out


def about_files(documents: list[Document], form: str) -> list[str]:
  """Warns of several files of text that hold many documents each. form: corpus.format."""
  names = [name.rpartition(':')[0] for name, _ in documents]
  names = [name for name in names if files.suffix(Path(name)) in ('', '.txt')]
  if form not in ('auto', 'sentences') or len({*names}) < 2:
    return []
  fix = 'corpus.format=paragraphs makes one of each file'
  return about('files', len(names) / len({*names}), fix)


def about_lines(documents: list[Document], form: str) -> list[str]:
  """Warns of lines that are read as sentences, and are none. form: corpus.format."""
  if form not in ('auto', 'sentences'):
    return []
  lines, sentences, pairs, goes_on = 0, 0, 0, 0
  for _, document in documents:
    lines += len(document)
    sentences += sum(len(split_sentences(line)) for line in document)
    for line, following in itertools.pairwise(document):
      pairs += 1
      goes_on += following[0].islower() and not _ENDS.search(line)
  wrapped, per_line = goes_on / max(1, pairs), sentences / max(1, lines)
  of_wrapped = about('wrapped', wrapped, 'corpus.format=paragraphs makes sentences of them')
  return of_wrapped or about('per_line', per_line, 'corpus.format=lines makes sentences of them')


def records(corpus: Corpus) -> Iterator[np.ndarray]:
  """The piece ids of some documents of a corpus."""
  at = corpus.document_at
  for i in spaced(corpus.number_of_documents, RECORDS):
    yield corpus.piece(at[i], at[i + 1])[0]
