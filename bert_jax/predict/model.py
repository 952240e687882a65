"""The Model: weights, tokenizer and config of one source, and what can be asked of them."""

import logging
from collections import Counter
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax import models, tokenizers, trained
from bert_jax.errors import InputError
from bert_jax.objectives import base
from bert_jax.predict import cpu_kernels, heads, hidden_states, masked_words, sentence_vectors
from bert_jax.tasks import TASKS

log = logging.getLogger('bert_jax')

# task: (what asks it, the objective it needs or '', the parts of the parameters it needs)
ASKS = {
  'fill-mask': (masked_words.FillMask, 'mlm_nsp', ('mlm',)),
  'perplexity': (masked_words.Perplexity, 'mlm_nsp', ('mlm',)),
  'next-sentence': (heads.NextSentence, 'mlm_nsp', ('pooler', 'nsp')),
  'classify': (heads.Classify, 'classification', ()),
  'pair': (heads.Pair, 'classification', ()),
  'tag': (heads.Tag, 'tagging', ()),
  'answer': (heads.Answer, 'qa', ()),
  'choose': (heads.Choose, 'choice', ()),
  'coreference': (heads.Coreference, 'coreference', ()),
  'embed': (sentence_vectors.Embed, '', ()),
  'attention': (hidden_states.Attention, '', ()),
}
HAS = {
  'fill-mask': 'masked-LM head; use a pre-trained one',
  'perplexity': 'masked-LM head; use a pre-trained one',
  'next-sentence': 'next-sentence head; use one pre-trained with loss.nsp_weight above 0',
  'classify': 'classifier; fine-tune one (configs/finetune.py)',
  'pair': 'classifier; fine-tune one (configs/finetune.py)',
}
DEFAULTS = {objective: task for task, (_, objective, _) in reversed(ASKS.items())}


def known(task):
  """InputError if there is no such task."""
  if task not in ASKS:
    raise InputError(f'task {task!r} is not known; use one of {", ".join(ASKS)}.')


class Model:
  """A model to be asked, on one device. counts: what was cut, windowed or not in the vocabulary.

  source: a run's workdir, a Hugging Face folder, or a trained.Trained. which: 'latest', 'best' or a
  step of a run. dtype: of matrix products and their weights, 'float32' or 'bfloat16'; '': the
  model's own, but float32 on a CPU, where bfloat16 takes two to three times as long.

  Texts are str; pairs and other records are tuples or dicts of the fields told in heads.py.
  """

  def __init__(self, source, which='latest', dtype=''):
    config_lib.show_log()
    found = (
      source if isinstance(source, trained.Trained) else trained.load(source, which)
    )
    self.config = found.config.copy_and_resolve_references()
    self.tokenizer, self.step = found.tokenizer, found.step
    self.pooling = found.vector.pooling or 'mean'
    # How it was trained on some device is not how it is best asked on another.
    self.config.model.update(
      dict(scan_layers=False, remat='none', attention_implementation='einsum')
    )
    if dtype not in ('', 'float32', 'bfloat16'):
      raise InputError(f'dtype is {dtype!r}; use float32 or bfloat16.')
    if dtype or jax.default_backend() == 'cpu':
      self.config.model.dtype = dtype or 'float32'
    self.config = config_lib.check(self.config)
    self.objective = TASKS[self.config.objective].objective(self.config, self.tokenizer)
    params = models.unstack_layers(found.params)
    params = {part: _in(self._dtype_of(part), tree) for part, tree in params.items()}
    self._turned = cpu_kernels.turns(self.config.model.dtype)
    self.weights = jax.device_put(cpu_kernels.turned(params) if self._turned else params)
    self.limit = self.config.data.seq_length  # what it was trained on; evaluation cuts there too
    if self.config.objective != 'mlm_nsp':
      self.limit = self.config.task.max_length or self.limit
    self.counts = Counter()
    self._asks = {}
    spare = self.config.model.vocab_size - self.tokenizer.vocab_size
    if spare < 0:
      raise InputError(
        f'the vocabulary has {self.tokenizer.vocab_size} pieces and the weights have '
        f'{self.config.model.vocab_size} rows for them; put back the one they were trained with.'
      )
    if spare > 0 and 'mlm' in self.weights:
      log.warning(
        'the weights have %d rows that the vocabulary has no piece for; none fills a mask',
        spare,
      )

  def _dtype_of(self, part):
    """That of a part's matrices: the classifiers compute in float32 always."""
    return self.config.model.dtype if part in ('encoder', 'mlm', 'pooler') else 'float32'

  @property
  def params(self):
    """The parameters as the objective has them, on the host."""
    params = jax.device_get(self.weights)
    return cpu_kernels.turned(params) if self._turned else params

  def compiled(self, function):
    """function(weights, ..), which may apply any module to (parts of) the weights, compiled."""

    @jax.jit
    def run(*args):
      with cpu_kernels.dense(self._turned):
        return function(*args)

    return run

  @property
  def default_task(self):
    if self.config.objective == 'mlm_nsp' and 'mlm' not in self.weights:
      return 'next-sentence' if {'pooler', 'nsp'} <= self.weights.keys() else 'embed'
    return DEFAULTS[self.config.objective]

  def ask(self, task, **options):
    """The Ask of a task: parsed(value) -> record. InputError if this model cannot do it."""
    key = (task, *sorted(options.items()))
    if key not in self._asks:
      self._asks[key] = self._made(task, options)
    return self._asks[key]

  def _made(self, task, options):
    known(task)
    kind, objective, parts = ASKS[task]
    if objective not in ('', self.config.objective) or not set(parts) <= self.weights.keys():
      what = HAS.get(task, f'head for {task!r}; use one that was trained for it')
      if objective == self.config.objective:
        raise InputError(f'the weights of this model came without a {what}.')
      raise InputError(f'this model was trained for {self.config.objective!r} and has no {what}.')
    if task == 'pair' and self.step and not self.config.table.pair_column:
      raise InputError('this model was trained on single texts, not on pairs; use classify.')
    return kind(self, **options)

  def note(self, counts, read):
    """Counts what was done to texts, and what the vocabulary does not know of the ids read."""
    self.counts.update(counts)
    unknown = sum(int(np.sum(ids == self.tokenizer.unk_id)) for ids in read)
    if unknown:
      self.counts['pieces that are not in the vocabulary ([UNK])'] += unknown

  def hidden(self, params, batch):
    """[B, T, D], the encoder's."""
    return base.encode(self.objective.model, params['encoder'], batch)

  def mlm_logits(self, params, hidden_BKD):
    """[B, K, V] of hidden states."""
    table_VD = params['encoder']['embeddings']['word_embeddings']['embedding']
    head = models.MaskedLMHead(self.objective.model)
    return head.apply({'params': params['mlm']}, hidden_BKD, table_VD)

  # In Python. Each takes a list and gives one answer for each element.

  def _all(self, task, values, **options):
    ask, records = self.ask(task, **options), []
    for i, value in enumerate(_listed(task, values)):
      try:
        records.append(ask.parsed(value))
      except InputError as error:
        raise InputError(f'{task}: element {i}: {error}') from None
    return ask, ask.answers(records)

  def _shown(self, task, values, **options):
    ask, answers = self._all(task, values, **options)
    return [answer and ask.shown(answer) for answer in answers]

  def fill_mask(self, texts, top_k=5):
    """For each text the candidates for each of its [MASK]s: [[(piece, probability), ...], ...]."""
    ask, texts = self.ask('fill-mask', top_k=top_k), _listed('fill-mask', texts)
    return [answer['masks'] if answer else [] for answer in ask.answers(tokenizers.checked(texts))]

  def classify(self, texts):
    """For each text, or (text, second text): {label: probability}, or a float (regression)."""
    return self._classified('classify', texts)

  def pair(self, pairs):
    """As classify, of pairs; of a released classifier only who asks knows that it reads them."""
    return self._classified('pair', pairs)

  def _classified(self, task, values):
    _, answers = self._all(task, values)
    key = 'prediction' if self.objective.regression else 'probabilities'
    return [answer[key] for answer in answers]

  def tag(self, texts):
    """For each text, or list of tokens: {'entities': [..]} or {'tags': [..]}, see heads.py."""
    texts = _listed('tag', texts)
    values = [{'tokens': list(x)} if isinstance(x, (list, tuple)) else x for x in texts]
    return self._shown('tag', values)

  def answer(self, questions, top_k=5):
    """For each (question, context): {'answer', 'probability', 'start', 'end', 'nbest'}."""
    return self._shown('answer', questions, top_k=top_k)

  def choose(self, questions):
    """For each (context, question, choice, choice, ..): {'prediction': number, ..}."""
    return self._shown('choose', questions)

  def coreference(self, records):
    """For each dict of text, pronoun, a, b and their offsets: {'prediction', ..}."""
    return self._shown('coreference', records)

  def embed(self, texts, pooling='', normalize=True):
    """[texts, hidden_size] float32."""
    _, answers = self._all('embed', texts, pooling=pooling, normalize=normalize)
    empty = np.zeros((0, self.config.model.hidden_size), np.float32)
    return np.stack([answer['vector'] for answer in answers]) if answers else empty

  def perplexity(self, texts):
    """[texts] pseudo-perplexities; NaN for a text in which there is no token."""
    _, answers = self._all('perplexity', texts)
    return [answer['perplexity'] if answer else float('nan') for answer in answers]

  def next_sentence(self, pairs):
    """For each (text, pair) the probability that the pair follows the text."""
    _, answers = self._all('next-sentence', pairs)
    return [next(iter(answer['probabilities'].values())) for answer in answers]

  def states(self, texts):
    """For each text or pair: tokens, hidden [L + 1, T, D], attention [L, H, T, T] (states.py)."""
    _, answers = self._all('attention', texts)
    return answers


def _listed(task, values):
  if not isinstance(values, Iterable) or isinstance(values, (str, bytes, dict)):
    raise InputError(
      f'{task} takes a list of texts, or of pairs, and got a {type(values).__name__}; put what is '
      'asked in [].'
    )
  return values


def _in(dtype, tree):
  """A tree of arrays on the host, its matrices in a type; biases and scales stay as they are."""
  kind = jnp.dtype(dtype)
  return jax.tree.map(lambda x: np.asarray(x, kind if np.ndim(x) > 1 else None), tree)
