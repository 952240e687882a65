"""Models that write, asked for what they cannot do: one sentence, and the status of a mistake."""

import contextlib
import io
import sys

import numpy as np
import pytest
from references import drawn
from released import SIZES, WORDS, made

from bert_jax import config as c
from bert_jax import models, tokenizers
from bert_jax.convert import from_huggingface
from bert_jax.predict import Model, __main__
from bert_jax.tasks import TASKS
from bert_jax.tools import convert
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


@pytest.mark.parametrize('others, code', [(1, 0), (0, 1)])
def test_a_prompt_that_is_too_long_is_told_beside_the_others(
  others, code, tmp_path, monkeypatch, capsys
):
  """And where none has an answer, the status says so."""
  convert.export_run(tmp_path / 'W', writer('causal'), {})
  prompts = [' '.join(['river'] * LENGTH)] + ['the river'] * others
  monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO('\n'.join(prompts).encode())))
  command = f'--model {tmp_path}/W --no-cache --task generate --max-tokens 2'
  with pytest.raises(SystemExit, match='1') if code else contextlib.nullcontext():
    __main__.main(command.split())
  said = capsys.readouterr().out.splitlines()
  assert len(said) == len(prompts) and 'tokens long' in said[0]


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
  (answer,) = getattr(Model(model._replace(params=params)), ask)(['the old river'], max_tokens=8)
  text = answer['generated'] if ask == 'generate' else answer
  plain = lambda pieces: {piece.removeprefix('##') for piece in pieces}
  assert plain(text.split()) <= plain(WORDS)


def test_what_ends_a_text_is_left_out_of_it():
  model = Model(writer('causal'))
  ask, pieces = model.ask('generate', stop=['market']), model.tokenizer.pieces
  prompt = model.tokenizer.ids_batch(['the river'])[0]
  for new, ended, text in (
    ('old stone [SEP]', True, ' old stone'),
    ('old market', True, ' old'),
    ('old market', False, ' old market'),
    ('old stone', False, ' old stone'),
  ):
    ids = np.array([pieces.index(piece) for piece in new.split()])
    answer = ask._answer('the river', prompt, ids, -1.5, ended)
    assert (answer['generated'], answer['tokens']) == (text, len(ids))
    assert (answer['ended'], answer['log_probability']) == (ended, -1.5)
