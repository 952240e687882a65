"""Continues a prompt, {"text"}, with text that the model writes.

A causal model writes from left to right: the likeliest token each time (temperature 0), one drawn
at random, or by beam search. It ends at [SEP], the end of a document, and at the `stop` pieces. A
masked model fills max_tokens masks after the prompt, one at a time: with order=left the first mask,
with order=confidence the mask with the most probable token. The same prompt and seed give the same
text, however prompts are batched; if it is repeated in one call, it is continued with other draws.
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
from bert_jax.errors import InputError, quoted
from bert_jax.models import encoder
from bert_jax.models.decoding import sampling
from bert_jax.models.decoding.beam_search import beam_search
from bert_jax.tasks.ask import LENGTH_PENALTY, Ask
from bert_jax.tasks.record import Option, Prediction

ROWS = 16  # sequences that are made together, all beams counted
STEP = 64  # caches are multiples of so many tokens long, so that few programs are compiled
ORDERS = 'left', 'confidence'
NEVER = '[PAD]', '[CLS]', '[MASK]'  # no text has them


class Generate(Ask):
  """Continues prompts by up to max_tokens. temperature, top_k, top_p, repetition_penalty: see
  sampling.Choice; beams, length_penalty: see beam_search.py; None: as its release says, else 1.
  stop: pieces. show: called with the growing text of a single prompt, from left to right."""

  def __init__(
    self,
    model: Any,
    max_tokens: int = 50,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    repetition_penalty: float | None = None,
    beams: int | None = None,
    length_penalty: float | None = None,
    stop: Sequence[str] = (),
    seed: int = 0,
    order: str = '',
  ):
    super().__init__(model)
    causal, pieces = model.config.model.causal, model.tokenizer.vocab_size
    self.config = model.objective.model.with_vocab_size(pieces)
    self.causal = causal or getattr(model.objective, 'writes', False)
    self.left = self.causal and not order
    said = _released(model.config) if self.left else {}
    as_said = lambda name, x, reads=True: x if x is not None else said.get(name, 1) if reads else 1
    repetition_penalty = as_said('repetition_penalty', repetition_penalty)
    beams = as_said('beams', beams, not temperature)
    length_penalty = as_said('length_penalty', length_penalty, beams > 1)
    only_beams = f'length_penalty is {length_penalty}, which only a beam search reads'
    no_draws = 'temperature is 0, and top_k and top_p cut what is drawn'
    for holds, sentence in (
      (top_k <= pieces, f'top_k is {top_k}; the vocabulary has {pieces} pieces, and 0 is all'),
      (length_penalty == 1 or beams > 1, f'{only_beams}; add beams, such as 4'),
      (beams == 1 or not temperature, f'beams is {beams}, which draws nothing; no temperature'),
      (temperature or not top_k and top_p == 1, f'{no_draws}; set temperature above 0'),
      (order in ('', *ORDERS), f'order is {order!r}; use left, confidence'),
      (not (order and causal), 'this model is causal and writes from left to right; no order then'),
      (beams == 1 or self.left, f'beams is {beams}, and masks are filled one at a time; omit it'),
      (not stop or self.left, 'stop says nothing to masks, which are all filled; leave it out'),
      (not isinstance(stop, str), f'stop is {quoted(stop)}; put it in [], with others if any'),
    ):
      if not holds:
        raise InputError(f'{sentence}.')
    reserved = model.tokenizer.reserved
    ends = [reserved['[SEP]']] if '[SEP]' in reserved else []  # a GPT's vocabulary has none
    ends = [i for i in said.get('ends', ends) if 0 <= i < pieces]
    stop_ids = (*ends, *map(self._piece, stop))
    never = () if 'ends' in said else NEVER  # transformers forbids no piece
    never_ids = tuple({reserved[x] for x in never if x in reserved} - {*stop_ids})
    drawn = float(temperature), top_k, float(top_p), float(repetition_penalty)
    self.choice = sampling.Choice(*drawn, stop_ids if self.left else (), never_ids)
    self.max_tokens, self.beams, self.seed = max_tokens, beams, seed
    early = said.get('early_stopping', False)
    self.search = {'length_penalty': float(length_penalty), 'early_stopping': early}
    self.order = order or ORDERS[0]
    # An end that is a plain piece stays in the text, as in transformers'.
    again = model.tokenizer.ids_batch(list(map(model.tokenizer.decode, ([i] for i in ends))))
    self.plain_ends = {i for i, ids in zip(ends, again) if i in ids}
    self.show: Any = None
    self._programs = functools.cache(self._left_to_right)

  def _piece(self, text):
    ids = self.model.tokenizer.ids_batch([text])[0]
    if len(ids) != 1:
      raise InputError(f'stop is {quoted(text)}, which is {len(ids)} pieces; name one piece.')
    if ids[0] == self.model.tokenizer.reserved.get('[UNK]'):
      raise InputError(f'stop is {quoted(text)}, which is not in the vocabulary; name a piece.')
    return int(ids[0])

  def replies(self, records: Sequence[str]) -> list[tuple[dict | None, str]]:
    tokenizer, limit = self.model.tokenizer, self.model.limit
    read = tokenizer.ids_batch(records)
    prompts = [np.array([*tokenizer.begin_ids, *ids], np.int32) for ids in read]
    # Masks need places, too, and so does the [SEP] of rows that all end in one.
    self.ends = () if self.left or self.model.config.corpus.rows == 'lm' else (tokenizer.sep_id,)
    most = limit if self.left else limit - self.max_tokens - len(self.ends)
    replies, groups, again = {}, {}, Counter()
    for i, ids in enumerate(prompts):
      if not 0 < len(ids) <= most:
        masks = '' if self.left else f' with its {self.max_tokens} masks'
        long = f'the prompt is {len(ids)} tokens long, and this model reads {limit}{masks}; cut it'
        replies[i] = None, long if len(ids) else 'the prompt has no token'
        continue
      number = zlib.crc32(ids.tobytes())
      groups.setdefault(_room(len(ids), limit), []).append((i, ids, number, again[number]))
      again[number] += 1
    cut, size = 0, max(1, ROWS // self.beams)
    for room, group in groups.items():
      for first in range(0, len(group), size):
        part = group[first : first + size]
        ids_BN, scores_B = self._written(room, part, alone=len(records) == 1)
        for (i, ids, *_), new, score in zip(part, ids_BN, scores_B):
          new = new[new != sampling.NONE]
          ended = bool(np.isin(new[-1:], self.choice.stop_ids).any())
          cut += len(new) < self.max_tokens and not ended
          replies[i] = self._answer(records[i], ids, new, score, ended), ''
    full = f'texts that end where the model has no more places ({limit})'
    self.model.note({full: cut} if cut else {}, read)
    return [replies[i] for i in range(len(records))]

  def _answer(self, text, ids, new, score, ended):
    drops = ended and new[-1] not in self.plain_ends
    out = {'text': text, 'generated': self._decoded(ids, new[: len(new) - drops])}
    name = 'score' if self.beams > 1 else 'log_probability'
    return out | {name: float(score), 'tokens': len(new), 'ended': ended}

  def _decoded(self, prompt, new):
    """The text of the new tokens after a prompt, with the blank before it."""
    decode = self.model.tokenizer.decode
    before, whole = decode(prompt), decode([*prompt, *new])
    return whole[len(before) :] if whole.startswith(before) else decode(new)

  def _written(self, room, part, alone):
    """Continues n prompts in rows of `room` tokens: (ids [n, max_tokens], scores [n])."""
    B = 1 << (len(part) - 1).bit_length()
    ids_BP, lengths_B = np.zeros((B, room), np.int32), np.ones(B, np.int32)
    numbers_B2 = np.zeros((B, 2), np.uint32)
    for b, (_, ids, *numbers) in enumerate(part):
      ids_BP[b, : len(ids)], lengths_B[b], numbers_B2[b] = ids, len(ids), numbers
    arrays = self.model.weights, ids_BP, lengths_B, numbers_B2
    if not self.left:
      out = self._fill(*arrays)
    else:
      whole, begin, advance = self._programs(_room(room + self.max_tokens, self.model.limit))
      grows = self.show and alone and self.beams == 1
      out = self._shown(begin(*arrays), advance, part[0][1]) if grows else whole(*arrays)
    return [np.asarray(x)[: len(part)] for x in out]

  def _shown(self, state, advance, prompt):
    """Goes on to the end with one prompt, and shows the text as it grows."""
    shown = ''
    while True:
      new = [i for i in np.asarray(state.ids[0]) if i not in (sampling.NONE, *self.choice.stop_ids)]
      text = self._decoded(prompt, new)
      # The last character may still lack bytes.
      if text.startswith(shown) and not text.endswith('\ufffd'):
        self.show(text[len(shown) :])
        shown = text
      if bool(state.done.all()) or int(state.count) == self.max_tokens:
        self.show('\n')
        return state.ids, state.scores
      state = advance(self.model.weights, state, state.count + 1)

  def _left_to_right(self, length):
    """The compiled functions (whole, begin, advance), with caches of `length` tokens."""
    config, choice = self.config, self.choice
    sizes = {'max_tokens': self.max_tokens, 'length': length}

    def read(params, ids_BP, lengths_B):
      prefill, step = encoder.one_token_steps(config, params)
      return step, *prefill(ids_BP, lengths_B, length), _seen(ids_BP, lengths_B, config)

    def begin(params, ids_BP, lengths_B, numbers_B2):
      _, logits_BV, cache, seen_BV = read(params, ids_BP, lengths_B)
      first = cache, logits_BV, lengths_B, self._keys(numbers_B2), choice
      return sampling.begin(*first, seen_BV=seen_BV, **sizes)

    def advance(params, state, upto):
      step = encoder.one_token_steps(config, params)[1]
      return sampling.advance(step, state, choice, upto=upto, length=length)

    def whole(params, ids_BP, lengths_B, numbers_B2):
      if self.beams == 1:
        state = advance(params, begin(params, ids_BP, lengths_B, numbers_B2), self.max_tokens)
        return state.ids, state.scores
      step, logits_BV, cache, seen_BV = read(params, ids_BP, lengths_B)
      search = {'beams': self.beams, 'seen_BV': seen_BV, **self.search}
      return beam_search(step, cache, logits_BV, lengths_B, choice, **search, **sizes)

    return tuple(map(self.model.compiled, (whole, begin, advance)))

  @functools.cached_property
  def _fill(self):
    """The compiled function that fills max_tokens masks after each prompt."""
    model, N, tokenizer = self.model, self.max_tokens, self.model.tokenizer

    def fill(params, ids_BP, lengths_B, numbers_B2):
      new_BN = lengths_B[:, None] + jnp.arange(N)
      tail = [tokenizer.mask_id] * N + list(self.ends)
      T = min(self.model.limit, ids_BP.shape[1] + len(tail))
      ids_BT = jnp.pad(ids_BP, ((0, 0), (0, max(0, T - ids_BP.shape[1]))))[:, :T]
      put = jax.vmap(lambda ids_T, at: jax.lax.dynamic_update_slice(ids_T, jnp.array(tail), (at,)))
      ids_BT = put(ids_BT, lengths_B)
      real_BT = (jnp.arange(T) < lengths_B[:, None] + len(tail)).astype(jnp.int32)
      at_BT = jnp.broadcast_to(jnp.arange(T), ids_BT.shape)
      rest = {'token_type_ids': 0 * at_BT, 'position_ids': at_BT, 'segment_ids': real_BT}

      def read(ids_BT):
        hidden_BTD = model.hidden(params, rest | {'input_ids': ids_BT})
        at_masks_BND = models.gather_positions(hidden_BTD, new_BN)
        logits_BNV = models.word_logits(self.config, params, at_masks_BND)
        special = jnp.isin(jnp.arange(logits_BNV.shape[-1]), jnp.array(tokenizer.special_ids))
        return jnp.where(special, -jnp.inf, logits_BNV)

      keys_B, seen_BV = self._keys(numbers_B2), _seen(ids_BP, lengths_B, self.config)
      how = {'surest': self.order == 'confidence', 'seen_BV': seen_BV}
      return sampling.unmask(read, ids_BT, new_BN, keys_B, self.choice, **how)

    return model.compiled(fill)

  def _keys(self, numbers_B2):
    """A random key for each row, from the numbers of its prompt."""
    key, fold = jax.random.key(self.seed), jax.random.fold_in
    return jax.vmap(lambda numbers: fold(fold(key, numbers[0]), numbers[1]))(numbers_B2)


def _released(config):
  """How a released model writes if it is not asked otherwise, see Description.writing."""
  said = dict(config.language_model.writing) if 'language_model' in config else {}
  for name in OPTIONS.keys() & said.keys():
    OPTIONS[name].check(name, said[name])
  return said


def _room(tokens, limit):
  return min(limit, -(-tokens // STEP) * STEP)


def _seen(ids_BP, lengths_B, config):
  """Marks the tokens that occur in each prompt, [B, V] bool."""
  rows_B1, real_BP = jnp.arange(len(ids_BP))[:, None], jnp.arange(ids_BP.shape[1])
  real_BP = real_BP < lengths_B[:, None]
  none_BV = jnp.zeros((len(ids_BP), config.padded_vocab_size), bool)
  return none_BV.at[rows_B1, ids_BP].max(real_BP)


LACKS = 'head that continues a prompt; use a masked or a causal language model'
OPTIONS = {
  'max_tokens': Option(int, 'most tokens of an answer; default: 50', 1),
  'temperature': Option(float, '0 takes the likeliest token (default), 1 draws', 0),
  'top_k': Option(int, 'draw from so many pieces; default: 0, all', 0),
  'top_p': Option(float, 'draw from the likeliest pieces of such a share', 0.001, 1),
  'repetition_penalty': Option(float, 'above 1, pieces come again less often', 0.001),
  'beams': Option(int, 'beam search with so many; default: as released, else 1, none', 1),
  'length_penalty': LENGTH_PENALTY,
  'stop': Option(tuple, 'a piece that ends the answer; may be repeated'),
  'seed': Option(int, 'of what is drawn; default: 0', 0, 2**31 - 1),
  'order': Option(str, 'of masked models: left or confidence; default: left'),
}
GENERATE = Prediction(Generate, ('mlm',), LACKS, options=OPTIONS)
