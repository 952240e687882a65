"""Small tables of texts, their vocabulary and a config for them, for tests of fine-tuning."""

from bert_jax import config as c

WORDS = ['river', 'market', 'engine', 'garden', 'winter', 'letter', 'old', 'new', 'good', 'bad']


def fields(*texts):
  """Command-line arguments from texts such as 'seed=1 steps=2'."""
  return [f'--config.{field}' for text in texts for field in text.split()]


def load(vocab, spec, *overrides):
  sizes = """model.hidden_size=16 model.intermediate_size=32 model.num_hidden_layers=1
    model.num_attention_heads=2 log.tensorboard=false epochs=0 steps=2"""
  words = f'tokenizer.path={vocab} model.vocab_size={len(WORDS) + 5}'
  return c.load(spec, [*fields(words, sizes), *overrides])


def finetune(vocab, train, *more, task='docs', evaluation=''):
  """The config of a small model for a table of texts."""
  data = f'data.train={train} data.eval={evaluation or train} data.seq_length=32'
  return load(vocab, f'configs/finetune.py:task={task}', *fields(data, *more))


def sentence(rng, least=1, most=9):
  return ' '.join(rng.choice(WORDS, rng.integers(least, most)))


def table(path, rng, number, labels=('0', '1'), most=9):
  rows = [f'{sentence(rng, most=most)}\t{labels[rng.integers(len(labels))]}' for _ in range(number)]
  path.write_text('\n'.join(['sentence\tlabel', *rows]) + '\n')
  return path


def fields_of(text, vocab):
  """The arguments of finetune in a text 'FIELD=VALUE ..', for a tiny model of the words here."""
  fields = dict(field.split('=') for field in text.split())
  return fields | {'model': 'tiny', 'tokenizer.path': vocab, 'model.vocab_size': len(WORDS) + 5}
