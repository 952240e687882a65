"""Models that write: what is in their texts, and what is not."""

import numpy as np
import pytest
from references import drawn
from released import SIZES, WORDS, made

from bert_jax import config as c
from bert_jax import models, tokenizers
from bert_jax.convert import from_huggingface
from bert_jax.predict import Model
from bert_jax.tasks import TASKS
from bert_jax.workdir import trained

# As in a BART.
PAIRS = {'position_embeddings': 'learned', 'hidden_act': 'gelu', 'layer_norm_eps': 1e-5}
PAIRS |= {'embedding_norm': True, 'embedding_scale': False}
# {kind: (config file, fields of its model)}
WRITERS = {
  'causal': ('configs/causal_lm.py', {}),
  'translation': ('configs/translate.py:size=small', PAIRS),
}
LENGTH = SIZES['max_position_embeddings']


def writer(kind, **changes):
  """A model with random weights that writes."""
  file, fields = WRITERS[kind]
  config = c.load(file)
  config.model.update(SIZES | {'dtype': 'float32'} | fields | changes)
  config.data.seq_length = LENGTH
  tokenizer = tokenizers.wordpiece_tokenizer(WORDS)
  params = drawn(TASKS[config.objective].objective(config, tokenizer).init)
  return trained.Trained(config, tokenizer, params, 1)


@pytest.mark.parametrize('kind, ask', [('masked', 'generate'), ('translation', 'translate')])
def test_nothing_is_written_that_the_vocabulary_has_not(kind, ask):
  """Released tables may have more rows than there are pieces. Here these are the likeliest."""
  more = len(WORDS) + 4
  model = made('masked-lm', vocab_size=more) if kind == 'masked' else writer(kind, vocab_size=more)
  flat = from_huggingface.flatten(model.params, models.ModelConfig(**model.config.model))
  name = 'encoder/embeddings/word_embeddings/embedding'
  words = flat[name] = np.array(flat[name])
  words[len(WORDS) :] = 50 * words[5:9]
  words[len(WORDS) + 2 :] *= -1
  params = from_huggingface.tree(flat, models.ModelConfig(**model.config.model))
  writes = Model(model._replace(params=params))
  if ask == 'generate':
    (text,) = [answer['prediction'] for answer in writes.generate(['the old river'], max_tokens=8)]
  else:
    (text,) = writes.translate(['the old river'])
  plain = lambda pieces: {piece.removeprefix('##') for piece in pieces}
  assert plain(text.split()) <= plain(WORDS)


def test_what_ends_a_text_is_left_out_of_it():
  model = Model(writer('causal'))
  ask, pieces = model.ask('generate'), model.tokenizer.pieces
  prompt = model.tokenizer.ids_batch(['the river'])[0]
  for new, ended, text in (
    ('old stone [SEP]', True, ' old stone'),
    ('old stone', False, ' old stone'),
  ):
    ids = np.array([pieces.index(piece) for piece in new.split()])
    answer = ask._answer(prompt, ids, -1.5, ended)
    assert (answer['prediction'], answer['tokens']) == (text, len(ids))
    assert (answer['ended'], answer['log_probability']) == (ended, -1.5)
