"""Continues a prompt, {"text"}, with text that the model writes.

A causal model writes from left to right: the likeliest token each time (temperature 0), or one
drawn at random. It ends at [SEP], the end of a document. A masked model fills max_tokens masks
after the prompt, one at a time from the left. The same prompt and seed give the same text, however
prompts are batched; if it is repeated in one call, it is continued with other draws.
"""

import functools
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import models
from bert_jax.errors import InputError
from bert_jax.models import encoder
from bert_jax.models.decoding import sampling
from bert_jax.tasks.ask import Ask
from bert_jax.tasks.record import Option, Prediction

ROWS = 16  # sequences that are made together
STEP = 64  # caches are multiples of so many tokens long, so that few programs are compiled
NEVER = '[PAD]', '[CLS]', '[MASK]'  # no text has them


class Generate(Ask):
  """Continues prompts by up to max_tokens. temperature, top_k, top_p: see sampling.Choice."""

  def __init__(
    self,
    model: Any,
    max_tokens: int = 50,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
  ):
    super().__init__(model)
    pieces = model.tokenizer.vocab_size
    self.config = model.objective.model.with_vocab_size(pieces)
    self.is_causal = model.config.model.causal or getattr(model.objective, 'writes', False)
    if not temperature and (top_k or top_p != 1):
      raise InputError('top_k and top_p cut what is drawn; set temperature above 0.')
    stop_ids, never_ids = self._special_ids()
    self.choice = sampling.Choice(
      float(temperature),
      min(top_k, pieces),
      float(top_p),
      stop_ids=stop_ids if self.is_causal else (),
      never_ids=never_ids,
    )
    self.max_tokens, self.seed = max_tokens, seed
    self._continues = functools.cache(self._from_left_to_right)

  def _special_ids(self):
    """(the ids that end a text, the ids that no text has)."""
    if self.is_causal and 'language_model' in self.model.config:
      released = dict(self.model.config.language_model.writing)
      if 'ends' in released:
        return tuple(i for i in released['ends'] if 0 <= i < self.config.vocab_size), ()
    reserved = self.model.tokenizer.reserved  # a GPT's has no [SEP]
    stop_ids = (reserved['[SEP]'],) if '[SEP]' in reserved else ()
    never_ids = {reserved[name] for name in NEVER if name in reserved}
    return stop_ids, tuple(never_ids - {*stop_ids})

  def replies(self, records: Sequence[str]) -> list[tuple[dict | None, str]]:
    tokenizer, limit = self.model.tokenizer, self.model.limit
    read = tokenizer.ids_batch(records)
    # A masked model reads the masks that it fills with the prompt.
    room = limit if self.is_causal else limit - self.max_tokens - len(self._tail)
    replies, groups, repeated = {}, {}, Counter()
    for i, ids in enumerate(read):
      prompt = np.array([*tokenizer.begin_ids, *ids], np.int32)
      if not len(prompt):
        replies[i] = None, 'the prompt has no token'
      elif len(prompt) > room:
        long = f'the prompt is {len(prompt)} tokens long, and this model has room for {room}'
        replies[i] = None, f'{long}; cut it'
      else:
        number = zlib.crc32(prompt.tobytes())
        group = groups.setdefault(_rounded(len(prompt), limit), [])
        group.append((i, prompt, (number, repeated[number])))
        repeated[number] += 1
    for length, group in groups.items():
      for first in range(0, len(group), ROWS):
        part = group[first : first + ROWS]
        ids_BN, scores_B = self._written(length, part)
        for (i, prompt, _), new, score in zip(part, ids_BN, scores_B):
          new = new[new != sampling.NONE]
          ended = bool(np.isin(new[-1:], self.choice.stop_ids).any())
          replies[i] = self._answer(prompt, new, score, ended), ''
    self.model.note({}, read)
    return [replies[i] for i in range(len(records))]

  def _answer(self, prompt, new, score, ended):
    written = new[:-1] if ended else new
    return {
      'prediction': self._decoded(prompt, written),
      'log_probability': float(score),
      'tokens': len(new),
      'ended': ended,
    }

  def _decoded(self, prompt, new):
    """The text of the new tokens after a prompt, with the blank before it."""
    decode = self.model.tokenizer.decode
    before, whole = decode(prompt), decode([*prompt, *new])
    return whole[len(before) :] if whole.startswith(before) else decode(new)

  def _written(self, length, part):
    """Continues n prompts in rows of `length` tokens: (ids [n, max_tokens], scores [n])."""
    B = 1 << (len(part) - 1).bit_length()
    ids_BP, lengths_B = np.zeros((B, length), np.int32), np.ones(B, np.int32)
    numbers_B2 = np.zeros((B, 2), np.uint32)
    for b, (_, prompt, numbers) in enumerate(part):
      ids_BP[b, : len(prompt)], lengths_B[b], numbers_B2[b] = prompt, len(prompt), numbers
    if self.is_causal:
      continues = self._continues(_rounded(length + self.max_tokens, self.model.limit))
    else:
      continues = self._fill
    ids_BN, scores_B = continues(self.model.weights, ids_BP, lengths_B, numbers_B2)
    return np.asarray(ids_BN)[: len(part)], np.asarray(scores_B)[: len(part)]

  def _from_left_to_right(self, length):
    """The compiled function that continues prompts with caches of `length` tokens."""
    N, choice = self.max_tokens, self.choice

    def continues(params, ids_BP, lengths_B, numbers_B2):
      prefill, step = encoder.one_token_steps(self.config, params)
      logits_BV, cache = prefill(ids_BP, lengths_B, length)
      state = sampling.begin(
        cache,
        logits_BV,
        lengths_B,
        self._keys(numbers_B2),
        choice,
        max_tokens=N,
        length=length,
      )
      state = sampling.advance(step, state, choice, upto=N, length=length)
      return state.ids, state.scores

    return self.model.compiled(continues)

  @property
  def _tail(self):
    """The ids after the masks of a row: the [SEP] in which rows end, unless they are a stream."""
    return [] if self.model.config.corpus.rows == 'lm' else [self.model.tokenizer.sep_id]

  @functools.cached_property
  def _fill(self):
    """The compiled function that fills max_tokens masks after each prompt."""
    model, N, tokenizer = self.model, self.max_tokens, self.model.tokenizer
    masks = [tokenizer.mask_id] * N + self._tail

    def with_masks(ids_T, at):
      return jax.lax.dynamic_update_slice(ids_T, jnp.array(masks), (at,))

    def fill(params, ids_BP, lengths_B, numbers_B2):
      masks_BN = lengths_B[:, None] + jnp.arange(N)
      P = ids_BP.shape[1]
      T = min(model.limit, P + len(masks))
      ids_BT = jnp.pad(ids_BP, ((0, 0), (0, max(0, T - P))))[:, :T]
      ids_BT = jax.vmap(with_masks)(ids_BT, lengths_B)
      at_BT = jnp.broadcast_to(jnp.arange(T), ids_BT.shape)
      is_real_BT = at_BT < lengths_B[:, None] + len(masks)

      def read(ids_BT):
        batch = {
          'input_ids': ids_BT,
          'token_type_ids': jnp.zeros_like(at_BT),
          'position_ids': at_BT,
          'segment_ids': is_real_BT.astype(jnp.int32),
        }
        hidden_BND = models.gather_positions(model.hidden(params, batch), masks_BN)
        logits_BNV = models.word_logits(self.config, params, hidden_BND)
        special_V = jnp.isin(jnp.arange(logits_BNV.shape[-1]), jnp.array(tokenizer.special_ids))
        return jnp.where(special_V, -jnp.inf, logits_BNV)

      return sampling.unmask(read, ids_BT, masks_BN, self._keys(numbers_B2), self.choice)

    return model.compiled(fill)

  def _keys(self, numbers_B2):
    """A random key for each row, from the numbers of its prompt."""
    key, fold = jax.random.key(self.seed), jax.random.fold_in
    return jax.vmap(lambda numbers: fold(fold(key, numbers[0]), numbers[1]))(numbers_B2)


def _rounded(tokens, limit):
  """A length of caches that has room for so many tokens, the limit at most."""
  return min(limit, -(-tokens // STEP) * STEP)


LACKS = 'head that continues a prompt; use a masked or a causal language model'
OPTIONS = {
  'max_tokens': Option(int, 'most tokens of an answer; default: 50', 1),
  'temperature': Option(float, '0 takes the likeliest token (default), 1 draws', 0),
  'top_k': Option(int, 'draw from so many pieces; default: 0, all', 0),
  'top_p': Option(float, 'draw from the likeliest pieces of such a share', 0.001, 1),
  'seed': Option(int, 'of what is drawn; default: 0', 0, 2**31 - 1),
}
GENERATE = Prediction(Generate, ('mlm',), LACKS, options=OPTIONS)
