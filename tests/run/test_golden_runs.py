"""Short training runs whose numbers are written down: each objective, each kind of rows.

Every run goes through the public interface (a config file with overrides, train()) on texts made
here, with what a real run has and a unit test leaves out: dropout, warm-up, a schedule, weight
decay, clipping, accumulation, scanned layers. Its losses of every step, its evaluation and sums of
its final parameters are compared with tests/golden/runs.json.

A difference means that the numbers of a run have changed for users, who may be in the midst of one.
If that was meant, say so in the commit and write the file anew:

    python tests/run/test_golden_runs.py --write [RUN ...]

The numbers say only that nothing moved; that they are right is for the other tests to say.
"""

import argparse
import json
import math
import random
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

GOLDEN = Path(__file__).parents[1] / 'golden' / 'runs.json'
ROOT = Path(__file__).parents[2]

# Share of a number, at least of FLOOR, that it may move; for a checksum, of its part's mean size.
# Another compiler or CPU moves them less than a tenth of that, faults far more.
TOLERANCE, FLOOR = 1e-4, 0.01
CHECKSUM_TOLERANCE = 1e-3

WORDS = """river market engine garden winter letter bridge forest stone boat road house lamp door
old new good bad the a near crosses holds follows meets carries she he was born in who""".split()  # noqa: SIM905
BACKWARDS = [word[::-1] for word in WORDS[:18]]
PIECES = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS, *BACKWARDS, '##s', '##ed', *'.,?']


def settings(text):
  """{field: its value} of 'field=value field=value'."""
  return dict(word.split('=', 1) for word in text.split())


# At BERT's initializer_range of 0.02 so narrow a model hardly looks at its input; with this eps
# what rounding leaves of a gradient of 0 stays small.
COMMON = settings(f"""model.vocab_size={len(PIECES)} model.vocab_multiple=8 model.hidden_size=32
model.num_hidden_layers=2 model.num_attention_heads=2 model.intermediate_size=64
model.max_position_embeddings=32 model.initializer_range=0.1 model.hidden_dropout_prob=0.1
model.attention_probs_dropout_prob=0.2 model.scan_layers=True batch_size=8 steps=10 epochs=0
data.seq_length=32 optimizer.learning_rate=4e-3 optimizer.warmup=3 optimizer.weight_decay=0.5
optimizer.eps=1e-4 optimizer.accumulation=2 eval.every=0 checkpoint.every=0 checkpoint.best_metric=
log.every=1 log.tensorboard=False""")
# Each compiler rounds bfloat16 its way, and a run moves by 1e-3.
PRETRAIN = settings(
  """model.dtype=float32 corpus.eval_share=0.3 corpus.dupe_factor=2 eval.batches=0"""
)
FINETUNE = {'data.examples_per_row': '4'}

# {name: its config, and what differs from COMMON and the two above}. {texts} are what write_texts
# writes; `data` is both data.train and data.eval.
RUNS = {
  'nsp': 'pretrain.py data.train={texts}/corpus.txt loss.nsp_weight=0.5',
  'sop, spans, horizon': """pretrain.py data.train={texts}/corpus.txt corpus.rows=sop
    masking.policy=span optimizer.horizon=2.0 eval_masking.policy=span""",
  'two languages, full, packed, whole words from step 5': """pretrain.py
    data.train=fw={texts}/corpus.txt,bw={texts}/backwards.txt corpus.sampling=0.5 corpus.rows=full
    data.examples_per_row=4 loss.nsp_weight=0 masking.policy=token,whole_word@5
    eval_masking.policy=whole_word
    optimizer.name=adamw optimizer.schedule=wsd optimizer.decay=4
    model.tie_word_embeddings=False""",
  'single, pre-LN': """pretrain.py data.train={texts}/corpus.txt corpus.rows=single
    loss.nsp_weight=0 model.norm_placement=pre model.hidden_act=swish model.remat=dots
    model.position_embeddings=sinusoidal model.layer_norm_eps=0.001 optimizer.schedule=cosine
    optimizer.accumulation=1""",
  'causal, two languages': """pretrain.py:objective=causal
    data.train=fw={texts}/corpus.txt,bw={texts}/backwards.txt data.examples_per_row=4
    model.mlm_head=none model.decoder_bias=False model.norm_placement=pre""",
  'hybrid': """pretrain.py:objective=hybrid data.train={texts}/corpus.txt
    language_model.causal_share=0.25""",
  'causal, a memory': """pretrain.py:objective=causal data.train={texts}/corpus.txt
    model.position_embeddings=relative model.memory_length=24 language_model.eval_memory=40
    optimizer.accumulation=1 data.examples_per_row=1""",
  'causal, then diffusion': """pretrain.py:objective=diffusion data.train={texts}/corpus.txt
    language_model.kind=causal,diffusion@5 model.position_embeddings=rotary""",
  'from a teacher': """distill.py:runlocal teacher={teacher} data.train={texts}/corpus.txt
    model.dtype=float32 corpus.eval_share=0.3 eval.batches=0""",
  'labels of pairs': """finetune.py:task=mrpc data={texts}/pairs.tsv table.prior=() table.labels=x,y
    table.class_weights=(('x',1.0),('y',3.0)) table.text_column=first table.pair_column=second
    table.label_column=label""",
  'a number': """finetune.py:task=table data={texts}/numbers.tsv table.prior=()
    table.text_column=text table.regression=True optimizer.layer_lr_decay=0.7
    optimizer.lr_multipliers=(('classifier',3.0),('query',0.5))""",
  'several labels, unrolled': """finetune.py:task=table data={texts}/many.tsv table.prior=()
    table.text_column=text table.multi_label=True model.scan_layers=False
    optimizer.layer_lr_decay=0.7 optimizer.freeze=word_embeddings data.examples_per_row=1""",
  'tags': 'finetune.py:task=ner data={texts}/tags.txt tagging.prior=()',
  'answers': """finetune.py:task=squad2 data={texts}/squad.json data.examples_per_row=2
    task.max_length=24 qa.doc_stride=6 qa.max_query_length=8 qa.max_answer_length=5""",
  'choices': 'finetune.py:task=copa data={texts}/copa.jsonl task.max_length=16',
  'vectors, two widths, in chunks': """contrastive.py data={texts}/pairs.tsv
    contrastive.anchor_column=first contrastive.positive_column=second contrastive.widths=(16,32)
    contrastive.chunks=2 optimizer.accumulation=1 model.dtype=float32""",
  'coreference': """finetune.py:task=gap data={texts}/gap.tsv data.examples_per_row=2
    optimizer.schedule=inverse_sqrt""",
}
RUNS = {name: text.split(maxsplit=1) for name, text in RUNS.items()}
RUNS = {name: (spec, settings(text)) for name, (spec, text) in RUNS.items()}


# ---- texts ---------------------------------------------------------------------------------------


def write_texts(folder):
  """Everything that the runs read, the same bytes on every machine."""
  rng = random.Random(0)
  pick = lambda words: words[rng.randrange(len(words))]

  def sentence(subject, endings=('', 's', 'ed')):
    middle = ' '.join(pick(WORDS[8:18]) + pick(endings) for _ in range(2 + rng.randrange(5)))
    return f'the {subject} {pick(WORDS[21:26])} {middle} near {subject} .'

  def lines(name, rows):
    (folder / name).write_text(''.join(f'{row}\n' for row in rows))

  documents = [
    '\n'.join(sentence(WORDS[i % 8]) for _ in range(3 + rng.randrange(6))) for i in range(40)
  ]
  lines('vocab.txt', PIECES)
  lines('corpus.txt', ['\n\n'.join(documents)])
  reverse = lambda text: ' '.join(word[::-1] for word in text.split() if word in WORDS[:18])
  few = [[reverse(line) for line in document.split('\n')] for document in documents[:25]]
  lines('backwards.txt', ['\n\n'.join('\n'.join(filter(None, part)) for part in few)])

  short = lambda: ' '.join(pick(WORDS) for _ in range(1 + rng.randrange(5)))
  pairs = [(short(), short()) for _ in range(60)]
  label = lambda one, two: 'y' if len(one) > len(two) else 'x'
  lines('pairs.tsv', ['first\tsecond\tlabel', *(f'{a}\t{b}\t{label(a, b)}' for a, b in pairs)])
  lines('numbers.tsv', ['text\tlabel', *(f'{a}\t{len(a) / 10}' for a, _ in pairs)])
  many = lambda text: ','.join(name for name in ('river', 'old', 'the') if name[0] in text)
  lines('many.tsv', ['text\tlabel', *(f'{a}\t{many(a)}' for a, _ in pairs)])

  tag = lambda word: 'B-LOC' if word in WORDS[:4] else 'B-PER' if word in WORDS[4:8] else 'O'
  tagged = [[f'{word}\t{tag(word)}' for word in f'{a} {b}'.split()] for a, b in pairs]
  lines('tags.txt', ['\n'.join([*words, '']) for words in tagged])

  paragraphs = []
  for i in range(12):
    words = [pick(WORDS[:26]) for _ in range(14 + rng.randrange(10))]
    place = rng.randrange(len(words) - 3)
    text, context = ' '.join(words[place : place + 2]), ' '.join(words)
    answer = {'text': text, 'answer_start': len(' '.join([*words[:place], '']))}
    asked = dict(id=f'a{i}', question='who was born in ?', answers=[answer], is_impossible=False)
    none = dict(id=f'n{i}', question='who meets a boat ?', answers=[], is_impossible=True)
    paragraphs.append({'context': context, 'qas': [asked, none]})
  (folder / 'squad.json').write_text(json.dumps({'data': [{'paragraphs': paragraphs}]}))

  choices = []
  for i, (a, _) in enumerate(pairs[:30]):
    asked = dict(premise=f'the {a}', choice1=short(), choice2=short())
    question, label = ('cause', 'effect')[i % 2], rng.randrange(2)
    choices.append(dict(idx=i, **asked, question=question, label=label))
  lines('copa.jsonl', map(json.dumps, choices))

  rows = ['ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL']
  for i in range(24):
    a, b = WORDS[i % 4], WORDS[4 + i // 4 % 4]
    text = f'the {a} meets {b} {short()} and {"he" if i % 2 else "she"} was old'
    pronoun = 'he' if i % 2 else 'she'
    at = [text.index(f' {word} ') + 1 for word in (a, b)] + [text.index(f' {pronoun} was') + 1]
    gold = [str(i % 3 == k).upper() for k in (0, 1)]
    cells = f'g{i}', text, pronoun, at[2], a, at[0], gold[0], b, at[1], gold[1], 'u'
    rows.append('\t'.join(map(str, cells)))
  lines('gap.tsv', rows)


# ---- numbers of a run ----------------------------------------------------------------------------


def config_of(name, texts, teacher='', **changes):
  """The config of a run. changes: {field: value} beside its own."""
  from bert_jax import config as c

  spec, own = RUNS[name]
  given = COMMON | (PRETRAIN if spec.startswith('pretrain') else FINETUNE) | own | changes
  given['tokenizer.path'] = '{texts}/vocab.txt'
  if data := given.pop('data', ''):
    given |= {'data.train': data, 'data.eval': data}
  fields = (f'{k}={x}'.format(texts=texts, teacher=teacher) for k, x in given.items())
  return c.load(f'configs/{spec}', [f'--config.{field}' for field in fields])


def numbers(name, texts, workdir):
  """A run -> {name: number}: of every step, of the evaluation, of the parameters at the end."""
  import jax

  from bert_jax.sharding import path_name
  from bert_jax.train import train

  teacher = workdir.with_name(f'{workdir.name} teacher')
  if 'teacher' in RUNS[name][1]:
    numbers('nsp', texts, teacher)
  config = config_of(name, texts, teacher)
  state, results = train(config, workdir)
  *steps, last = map(json.loads, (workdir / 'metrics.jsonl').read_text().splitlines())
  names = 'loss', 'grad_norm', 'seen_tokens'
  out = {f'{name} of step {line["step"]}': line[name] for line in steps for name in names}
  last = {k: v for k, v in last.items() if k not in ('step', 'split')}
  assert last.keys() == results.keys(), 'the last line is that of the evaluation'
  out |= {f'{k} of the evaluation': v for k, v in last.items() if v is not None}
  parts = {}
  for path, x in jax.tree_util.tree_flatten_with_path(state.params)[0]:
    part = '/'.join(path_name(path).split('/')[:2])
    parts.setdefault(part, []).append(np.asarray(x, np.float64).ravel())
  for part, arrays in parts.items():
    x = np.concatenate(arrays)
    out[f'mean size of {part}'] = np.abs(x).mean()
    # A number that the place of each parameter matters to, of the size of the one above.
    signs = np.where(np.arange(x.size) * 2654435761 % 2**32 < 2**31, 1, -1)
    out[f'checksum of {part}'] = float((x * signs).sum() / math.sqrt(x.size))
  return {k: float(v) for k, v in out.items()}


def differences(found, golden):
  """Lines about numbers that moved further than rounding explains, or are new, or gone."""
  lines = [f'{k}: {golden[k]:.7g} before, now gone' for k in golden if k not in found]
  lines += [f'{k}: {found[k]:.7g}, not there before' for k in found if k not in golden]
  for name in found.keys() & golden.keys():
    now, before = found[name], golden[name]
    room = TOLERANCE * max(FLOOR, abs(before))
    if name.startswith('checksum of '):
      room = CHECKSUM_TOLERANCE * golden[name.replace('checksum', 'mean size')]
    if not abs(now - before) <= room:
      lines.append(f'{name}: {before:.7g} before, {now:.7g} now')
  return lines


# ---- tests ---------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def texts(tmp_path_factory):
  folder = tmp_path_factory.mktemp('texts')
  write_texts(folder)
  return folder


@pytest.mark.parametrize('name', RUNS)
def test_a_run_gives_the_numbers_it_gave(name, texts):
  golden = json.loads(GOLDEN.read_text()).get(name)
  assert golden, f'write its numbers: python tests/run/test_golden_runs.py --write {name!r}'
  workdir, trained = texts / f'run {name}', texts / 'run nsp'
  if 'teacher' in RUNS[name][1] and trained.is_dir():
    shutil.copytree(trained, f'{workdir} teacher')  # a run that has ended is read again
  moved = differences(numbers(name, texts, workdir), golden)
  shown = '\n  '.join(sorted(moved)[:20])
  assert not moved, (
    f'{len(moved)} of {len(golden)} numbers of the run {name!r} have moved:\n  {shown}\n'
    'Runs of users change likewise. If that was meant, write the numbers anew with\n'
    f'  python tests/run/test_golden_runs.py --write {name!r}\n'
    'and say in the commit what moved them; else look for the fault.'
  )


def main():
  parser = argparse.ArgumentParser(description='Writes the numbers of the runs anew.')
  parser.add_argument('--write', action='store_true', required=True)
  parser.add_argument('run', nargs='*', help=f'all by default: {"; ".join(RUNS)}')
  args = parser.parse_args()
  sys.path[:0] = str(ROOT), str(ROOT / 'tests')
  import conftest  # noqa: F401 (the environment of the tests)

  golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
  with tempfile.TemporaryDirectory() as folder:
    folder = Path(folder)
    write_texts(folder)
    for i, name in enumerate(args.run or RUNS):
      found = numbers(name, folder, folder / str(i))
      for line in differences(found, golden.get(name, {})):
        print(f'{name}: {line}')
      golden[name] = found
  golden = {name: golden[name] for name in RUNS if name in golden}
  rounded = {run: {k: float(f'{v:.9g}') for k, v in own.items()} for run, own in golden.items()}
  GOLDEN.write_text(json.dumps(rounded, indent=1) + '\n')


if __name__ == '__main__':
  main()
