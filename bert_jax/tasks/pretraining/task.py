"""Makes the rows of pre-training from text or prepared corpora, with baselines to beat."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tqdm
from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.corpus import loading, tokenized
from bert_jax.corpus.blocks import Blocks
from bert_jax.errors import InputError, log, quoted
from bert_jax.files import Path
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.rows.block_rows import BlockRows
from bert_jax.rows.corpus_rows import Rows
from bert_jax.rows.language_mixture import Mixture, shares
from bert_jax.rows.sentence_pairs import PAIRS
from bert_jax.tasks import labelled
from bert_jax.tasks.pretraining import baselines
from bert_jax.text import documents, files
from bert_jax.timeline import values_of
from bert_jax.tokenizers import Tokenizer


def lengths(config: ConfigDict) -> tuple[int, ...]:
  """The row lengths in corpus.lengths, stage by stage."""
  return tuple(map(int, values_of(config.corpus.lengths)))


def most_predictions(rate: float, tokens: int) -> int:
  """The number of predictions in a row of so many tokens at a masking rate, rounded up."""
  return math.ceil(round(rate * tokens, 6))


def resolve(config: ConfigDict) -> ConfigDict:
  """Fills in languages and vocabulary of a prepared corpus, and how much is predicted in a row."""
  config = config.copy_and_resolve_references()
  if not config.masking.max_predictions_per_seq:
    rate = config.masking.masked_lm_prob
    config.masking.max_predictions_per_seq = most_predictions(rate, config.data.seq_length)
  metas = loading.metas(config.data.train, config.corpus.languages)
  made = [meta['vocabulary'] for _, meta in metas if meta]
  evals = loading.metas(config.data.eval, config.corpus.languages) if made else []
  if 0 < len(made) < len(metas):
    raise InputError('data.train mixes prepared corpora and text; prepare all of them.')
  if len(set(made)) > 1:
    raise InputError('data.train was prepared with several vocabularies; prepare it with one.')
  # Where data.train is prepared, data.eval may be text that no lexicon has marked.
  _check_marks(config, metas + [(name, meta) for name, meta in evals if meta])
  if made:
    _take_vocabulary(config, files.parts(config.data.train, config.corpus.languages)[0][1])
  _take_languages(config, metas)
  return config


def _take_vocabulary(config, folder):
  """Gives a config the vocabulary of the prepared corpus in a folder."""
  tokenizer, path = tokenizers.load_folder(folder), config.tokenizer.path
  if path:
    named = tokenizers.load(path, do_lower_case=config.tokenizer.do_lower_case)
    if named.fingerprint != tokenizer.fingerprint:
      fault = f'tokenizer.path={path} is not the vocabulary that {folder} was prepared with'
      raise InputError(f'{fault}; leave it empty, or prepare the corpus again with --vocab.')
  elif not config.init_from:
    config.tokenizer.path = str(tokenizers.in_folder(Path(folder).expanduser()))
  config.tokenizer.do_lower_case = getattr(tokenizer, 'do_lower_case', True)
  if config.model.vocab_size != tokenizer.vocab_size and not config.init_from:
    log.info('model.vocab_size is that of %s: %d', folder, tokenizer.vocab_size)
    config.model.vocab_size = tokenizer.vocab_size


def _take_languages(config, metas):
  """Fills in corpus.languages. InputError for a name that no corpus has, or several."""
  languages = lambda meta: meta['languages'] if meta else ('',)
  known = [loading.joined(name, x) for name, meta in metas for x in languages(meta)]
  if twice := [name for name, number in Counter(known).items() if number > 1]:
    advice = 'give each corpus its own name, or prepare them together'
    raise InputError(f'data.train names {quoted(twice[0])} twice; {advice}.')
  if missing := sorted(set(config.corpus.languages) - set(known)):
    there = f'which is not in data.train: {", ".join(map(repr, known))}'
    raise InputError(f'corpus.languages has {missing[0]!r}, {there}; change corpus.languages.')
  if not config.corpus.languages and any(known):
    config.corpus.languages = tuple(known)
  if unknown := sorted({name for name, _ in config.corpus.weights} - set(known)):
    raise InputError(f'corpus.weights has {unknown[0]!r}, which is not among {", ".join(known)}.')


def _check_marks(config, metas):
  """InputError if the units of a masking policy were not marked when the corpus was prepared."""
  policies = {*values_of(config.masking.policy), config.eval_masking.policy}
  made = [meta for _, meta in metas if meta]
  marks = {'segmenter': '', 'phrases': 'phrase', 'entities': 'entity'}
  for name, policy in marks.items():
    lexicon, masks = config.corpus[name], policy in policies - {''}
    asked = f'masking.policy={policy}' if masks else f'corpus.{name}={lexicon}'
    if masks and not lexicon and len(made) < len(metas):  # there is text
      raise InputError(f'{asked} needs corpus.{name}, a lexicon; name its file.')
    if (masks or lexicon) and not all(meta[name] for meta in made):
      fault = f'{asked} needs marks that are made when a corpus is prepared, and this one has none'
      every = {name: lexicon or 'FILE'} | {x: config.corpus[x] for x in marks if config.corpus[x]}
      again = ' '.join(f'--{x} {value}' for x, value in every.items())
      raise InputError(f'{fault}; prepare it again with {again}.')


def texts(config: ConfigDict) -> Iterator[str] | Mapping[str, Iterator[str]]:
  """The sentences of the training documents; {language: sentences} with several languages."""
  parts = files.parts(config.data.train, config.corpus.languages)
  out = {name: _sentences(config, spec) for name, spec in parts}
  return out if len(parts) > 1 else out[parts[0][0]]


def _sentences(config, spec):
  read = loading.documents(config, spec, Counter(), 'train')
  for _, sentences in tqdm.tqdm(read, desc='reading', unit=' documents', disable=None):
    if config.data.eval or not documents.held_out(sentences, config.corpus.eval_share):
      yield from sentences


SHARES = 'masked_lm_prob', 'mask_share', 'random_share'


def judged_under(config: ConfigDict) -> dict[str, Any]:
  """The seed and the masking of an evaluation, on which its numbers depend, {name: value}."""
  masking, cap = config.eval_masking, 0
  if not masking.policy:  # as in training
    masking, cap = config.masking, config.masking.max_predictions_per_seq
  return {
    'eval.seed': config.seed if config.eval.seed < 0 else config.eval.seed,
    'eval_masking.policy': values_of(masking.policy)[-1],
    **{f'eval_masking.{name}': masking[name] for name in SHARES},
    'predictions per row': cap or most_predictions(masking.masked_lm_prob, config.data.seq_length),
  }


def objective(
  config: ConfigDict, tokenizer: Tokenizer, kind: type = MlmNsp, masks: bool = True, **more: Any
) -> Any:
  """The objective of a config, a `kind` of MlmNsp with `more` fields. masks: it needs [MASK]."""
  masking, under = config.masking, judged_under(config)
  most = most_predictions(masking.masked_lm_prob, config.data.seq_length)
  corruption = {name: masking[name] for name in SHARES} | {
    'policies': values_of(masking.policy),
    'vocab_size': tokenizer.vocab_size,
    'special_ids': tokenizer.special_ids,
    # Rows need a [CLS]; vectors, which T5's encoder makes, need neither.
    'mask_id': tokenizer.mask_id if masks and tokenizer.ends[0] else None,
    'max_predictions': masking.max_predictions_per_seq or most,
  }
  in_evaluations = {name: under[f'eval_masking.{name}'] for name in SHARES}
  in_evaluations['policies'] = (under['eval_masking.policy'],)
  in_evaluations['max_predictions'] = under['predictions per row']
  more |= {'eval_masking': in_evaluations, 'sbo_weight': config.loss.sbo_weight}
  more |= {'pairs': pairs_of(config), 'lengths': lengths(config)}
  more['languages'] = tuple(config.corpus.languages)
  return labelled.objective(kind, config, config.loss.nsp_weight, corruption, **more)


def sources(
  config: ConfigDict,
  tokenizer: Tokenizer,
  splits: Sequence[str] = ('train', 'eval'),
  further: Callable[..., None] = lambda *arguments: None,
) -> dict[str, Any]:
  """Rows of each split. With data.eval empty, documents are held out by a hash of their names.
  further(source, rows, corpora, train_corpora, share): called for each split, to add further facts
  to a source. rows: {language: Rows}; corpora of the split and of training: {language:
  (corpus, unigram counts [V])}; share: {language: its share}."""
  data = config.data
  # `resolve` checks this before a training; an evaluation may come with another policy.
  _check_marks(config, loading.metas(data.train, config.corpus.languages))
  share = 0.0 if data.eval else config.corpus.eval_share
  corpora: dict[str, dict[str, Any]] = {'train': {}, 'eval': {}}  # {split: {language: ..}}
  loaded = loading.load(config, data.train, tokenizer, 'train')
  for language, (whole, counts) in loaded.items():
    kept, held_corpus = whole.divided(share)
    if held_corpus is not None:
      held_counts = held_corpus.unigrams(tokenizer.vocab_size)
      corpora['eval'][language] = held_corpus, held_counts
      counts = np.maximum(counts - held_counts, 0)
    corpora['train'][language] = kept, counts
  if data.eval:
    corpora['eval'] = loading.load(config, data.eval, tokenizer, 'eval')
  return {x: _source(config, tokenizer, x, corpora, further) for x in splits if corpora[x]}


def _source(config, tokenizer, split, corpora, further):
  """The rows of a split, a Mixture if there are several languages, with baselines."""
  of_split, languages, needed = corpora[split], list(corpora['train']), _documents_needed(config)
  few = [name for name, (corpus, _) in of_split.items() if corpus.number_of_documents < needed]
  if split == 'eval' and 0 < len(few) < len(of_split):
    log.warning('eval: too few documents to evaluate on %s', ', '.join(few))
    of_split = {name: pair for name, pair in of_split.items() if name not in few}
  parts, of_both = {}, {}  # {language: its Rows}, {language: counts in training and here}
  for language, (corpus, counts) in of_split.items():
    what = f'{split} {language}'.strip()
    parts[language] = _rows(config, corpus, tokenizer, split, languages.index(language), what)
    both = corpora['train'][language][1], counts
    of_both[language] = tuple(tokenized.predictable(x, tokenizer) for x in both)
  if len(parts) == 1:
    (source,), share = parts.values(), dict.fromkeys(parts, 1.0)
  else:
    sizes = {language: len(corpus) for language, (corpus, _) in of_split.items()}
    source, share = _mixture(config, split, parts, sizes)
  # The losses of pieces that are predicted from their own places.
  terms = {'mlm': True, 'sbo': config.loss.sbo_weight, 'bound': 'language_model' in config}
  terms = [name for name, is_there in terms.items() if is_there]
  level = baselines.add(source, terms, of_both, share, languages)
  further(source, parts, of_split, corpora['train'], share)
  if config.loss.nsp_weight:
    baselines.add_pairs(source, pairs_of(config), [x.totals for x in parts.values()])
  says = 'a loss of predicted tokens that stays there has learned frequencies only'
  log.info('%s: unigram cross-entropy %.3f nats per token; %s', split, level, says)
  return source


def _mixture(config, split, parts, sizes):
  """The Mixture of the Rows of several languages, and {language: its share of the tokens}."""
  seen = shares(sizes, config.corpus.sampling, dict(config.corpus.weights))
  weights = {k: seen[k] / (part.totals['tokens'] / len(part)) for k, part in parts.items()}
  source = Mixture(parts, {k: x / sum(weights.values()) for k, x in weights.items()})
  if split == 'train':
    log.info('share of the tokens seen: %s', ', '.join(f'{k} {x:.2%}' for k, x in seen.items()))
    return source, seen
  # In an evaluation every row counts once, in training as often as it is seen.
  return source, {k: n / sum(sizes.values()) for k, n in sizes.items()}


def _documents_needed(config):
  return PAIRS[config.corpus.rows].documents if config.corpus.rows in PAIRS else 1


def pairs_of(config: ConfigDict) -> str:
  """The kind of sentence pairs of a config's head, also if its rows have no pairs."""
  return config.corpus.rows if config.corpus.rows in PAIRS else 'nsp'


def _rows(config, corpus, tokenizer, split, language, what):
  """The Rows of a corpus. language: its number; what: split and language, for messages."""
  number, needed, block = corpus.number_of_documents, _documents_needed(config), config.corpus
  if number < needed:
    pairs = ' (sentence pairs take two)' if needed == 2 else ''
    advice = 'give more text, separate documents by blank lines, or change corpus.eval_share'
    if block.format == 'paragraphs':
      advice = 'a file is a document (corpus.format=paragraphs); give more, or some in data.eval'
    few = f'the {what} data has {number} documents and needs {needed}{pairs}; {advice}'
    held_out = f'corpus.eval_share={block.eval_share} is held out while data.eval is empty'
    raise InputError(f'{few} ({held_out}).')
  drawn_by = judged_under(config)['eval.seed'] if split == 'eval' else config.seed
  times, length = block.dupe_factor if split == 'train' else 1, config.data.seq_length
  shape = {'seq_length': length, 'examples_per_row': config.data.examples_per_row}
  cuts = {'kind': block.rows, 'short_seq_prob': block.short_seq_prob, 'dupe_factor': times}
  drawn = {'seed': (drawn_by, split == 'eval', language), 'language': language}
  kind = BlockRows if isinstance(corpus, Blocks) else Rows
  out = kind(corpus, tokenizer, **shape, **cuts, **drawn)
  made = f'{len(out):,} rows of {length}, {100 * out.fill:.1f} % filled'
  repeated = f', of which rows are made {times} times' if times > 1 else ''
  size = f'{number:,} documents, {len(corpus):,} tokens{repeated} -> {made}'
  log.info('%s: %s, %s tokens cut to fit', what, size, f'{out.totals["cut_tokens"]:,}')
  if isinstance(out, BlockRows):
    lost = f'rows of a pass that are left out, or twice: {100 * out.misses:.2f} %'
    log.info('%s: planned by block, %d units; %s', what, corpus.units, lost)
  return out
