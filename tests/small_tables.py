"""Small tables of texts, their vocabulary and a config for them, for tests of fine-tuning."""

from bert_jax import config as c

WORDS = ['river', 'market', 'engine', 'garden', 'winter', 'letter', 'old', 'new', 'good', 'bad']


def sentence(rng, least=1, most=9):
  return ' '.join(rng.choice(WORDS, rng.integers(least, most)))


def load(vocab, spec, *overrides):
  return c.load(
    spec,
    [
      f'--config.tokenizer.path={vocab}',
      f'--config.model.vocab_size={len(WORDS) + 5}',
      '--config.model.hidden_size=16',
      '--config.model.intermediate_size=32',
      '--config.model.num_hidden_layers=1',
      '--config.model.num_attention_heads=2',
      '--config.log.tensorboard=false',
      '--config.epochs=0',
      '--config.steps=2',
      *overrides,
    ],
  )


def table(path, rng, number, labels=('0', '1'), most=9):
  rows = [f'{sentence(rng, most=most)}\t{labels[rng.integers(len(labels))]}' for _ in range(number)]
  path.write_text('\n'.join(['sentence\tlabel', *rows]) + '\n')
  return path
