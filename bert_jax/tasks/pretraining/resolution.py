"""What only the data of pre-training can tell: its vocabulary, its languages, and its texts."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tqdm
from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.corpus import loading
from bert_jax.errors import InputError, counted, log
from bert_jax.files import Path
from bert_jax.rows.sentence_pairs import PAIRS
from bert_jax.text import documents, files
from bert_jax.timeline import values_of

# {field: the masking policy that needs it, if one does}
MARKS = {'segmenter': '', 'phrases': 'phrase', 'entities': 'entity'}


def resolve(config: ConfigDict) -> ConfigDict:
  """Fills in languages, the vocabulary of a prepared corpus, and the share of a short text that is
  held out."""
  config = config.copy_and_resolve_references()
  metas = loading.metas(config.data.train, config.corpus.languages)
  vocabularies = [meta['vocabulary'] for _, meta in metas if meta]
  if 0 < len(vocabularies) < len(metas):
    raise InputError('data.train mixes prepared corpora and text; prepare all of them.')
  if len(set(vocabularies)) > 1:
    raise InputError('data.train was prepared with several vocabularies; prepare it with one.')
  check_marks(config, metas)
  if vocabularies:
    # Of data.eval only what is prepared, too: it may be text that no lexicon has marked.
    evals = loading.metas(config.data.eval, config.corpus.languages)
    check_marks(config, [(name, meta) for name, meta in evals if meta])
    _take_vocabulary(config, files.parts(config.data.train, config.corpus.languages)[0][1])
  _take_languages(config, metas)
  if config.corpus.eval_share and not (config.data.eval or vocabularies or len(metas) > 1):
    _take_share(config)
  return config


def _take_vocabulary(config, folder):
  """Gives a config the vocabulary of the prepared corpus in a folder."""
  tokenizer, path = tokenizers.load_folder(folder), config.tokenizer.path
  if path:
    given = tokenizers.load(path, do_lower_case=config.tokenizer.do_lower_case)
    if given.fingerprint != tokenizer.fingerprint:
      raise InputError(
        f'tokenizer.path={path} is not the vocabulary that {folder} was prepared with; '
        'leave it empty, or prepare the corpus again with --vocab.'
      )
  elif not config.init_from:
    config.tokenizer.path = str(tokenizers.in_folder(Path(folder).expanduser()))
  config.tokenizer.do_lower_case = tokenizer.do_lower_case
  if config.model.vocab_size != tokenizer.vocab_size and not config.init_from:
    log.info('model.vocab_size is that of %s: %d', folder, tokenizer.vocab_size)
    config.model.vocab_size = tokenizer.vocab_size


def _take_languages(config, metas):
  """Fills in corpus.languages. InputError for a name that no corpus has, or several."""
  names = []
  for name, meta in metas:
    languages = meta['languages'] if meta else ('',)
    names += [loading.joined(name, language) for language in languages]
  if len(set(names)) < len(names):
    raise InputError(
      f'data.train names a language twice, among {", ".join(names)}; '
      'give each corpus its own name, or prepare them together.'
    )
  for name in config.corpus.languages:
    if name not in names:
      known = ', '.join(map(repr, names))
      raise InputError(
        f'corpus.languages has {name!r}, which is not in data.train: {known}; '
        'change corpus.languages.'
      )
  if not config.corpus.languages and any(names):
    config.corpus.languages = tuple(names)


def documents_needed(config: ConfigDict) -> int:
  """How many documents the rows of a config are made of at least."""
  rows = config.corpus.rows
  return PAIRS[rows].documents if rows in PAIRS else 1


def _take_share(config):
  """Raises corpus.eval_share where of few documents it would hold out fewer than rows need."""
  given, needed = config.corpus.eval_share, documents_needed(config)
  _, spec = files.parts(config.data.train, config.corpus.languages)[0]
  hashes, held_out = set(), set()
  for _, sentences in loading.documents(config, spec, Counter(), 'train'):
    number = documents.text_hash(sentences)
    hashes.add(number)
    if documents.is_held_out(number, given):
      held_out.add(number)
    if len(held_out) == needed:
      return
  if len(hashes) < 2 * needed:
    raise InputError(
      f'data.train has {counted(len(hashes), "different documents")}, too few to hold out {needed} '
      f'for corpus.rows={config.corpus.rows}; give more (a blank line ends one in a file of text; '
      'with corpus.format=paragraphs a file is one), data.eval, or corpus.eval_share=0.'
    )
  last, share = sorted(hashes)[needed - 1], given
  while not documents.is_held_out(last, share):
    share = round(share + 0.001, 4)
  config.corpus.eval_share = share
  log.warning(
    f'corpus.eval_share={given} of {len(hashes)} different documents holds out {len(held_out)}; '
    f'{share} is taken, which holds out {needed} at least'
  )


def check_marks(config: ConfigDict, metas: Sequence[tuple[str, Any]]) -> None:
  """InputError if the units of a masking policy were not marked when the corpus was prepared."""
  policies = {*values_of(config.masking.policy), config.eval_masking.policy}
  prepared = [meta for _, meta in metas if meta]
  has_text = len(prepared) < len(metas)
  for field, policy in MARKS.items():
    lexicon, is_policy = config.corpus[field], bool(policy) and policy in policies
    setting = f'masking.policy={policy}' if is_policy else f'corpus.{field}={lexicon}'
    if is_policy and not lexicon and has_text:
      raise InputError(f'{setting} needs corpus.{field}, a lexicon; name its file.')
    if (is_policy or lexicon) and not all(meta[field] for meta in prepared):
      raise InputError(
        f'{setting} needs marks that are made when a corpus is prepared, and this one has none; '
        f'prepare it again with --{field} {lexicon or "FILE"}.'
      )


def texts(config: ConfigDict) -> Iterator[str] | Mapping[str, Iterator[str]]:
  """The sentences of the training documents; {language: sentences} with several languages."""
  parts = files.parts(config.data.train, config.corpus.languages)
  sentences = {name: _sentences(config, spec) for name, spec in parts}
  return sentences if len(parts) > 1 else sentences[parts[0][0]]


def _sentences(config, spec):
  read = loading.documents(config, spec, Counter(), 'train')
  for _, sentences in tqdm.tqdm(read, desc='reading', unit=' documents', disable=None):
    if config.data.eval or not documents.held_out(sentences, config.corpus.eval_share):
      yield from sentences
