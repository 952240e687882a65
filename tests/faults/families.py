"""The families of runs that the campaign damages: golden runs, and what none of them has.

Each is trained on the texts of test_golden_runs.write_texts, in the folder `texts`, and stops,
goes on and is read in the folders that `Made` names.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / 'tests' / 'run'))

import recorder  # noqa: E402
import test_golden_runs as golden  # noqa: E402

STEPS, MORE = 12, 16  # of a run, and of one that goes on after its end
LINES = 'the river holds an old stone\nshe carries a lamp near the door\na boat was old\n' * 3
# What every run of a family does, whatever the golden run does.
OFTEN = golden.settings(f"""steps={STEPS} eval.every=4 eval.batches=0 checkpoint.every=2
checkpoint.keep_latest=3 log.every=1 optimizer.accumulation=1""")
MLM = 'checkpoint.best_metric=mlm'
BLOCKS = 'data.train=D corpus.rows=full loss.nsp_weight=0'
LEXICON = f"""masking.policy=whole_word,phrase@4,entity@8 corpus.phrases={{texts}}/phrases.txt
corpus.entities={{texts}}/entities.txt {MLM}"""
SPANS = 'corpus.lengths=16,32@6 optimizer.batch_warmup=6 optimizer.accumulation=2'
PAIRS = """table.labels=x,y table.text_column=first table.pair_column=second
table.label_column=label"""
BART = 'model.embedding_norm=true model.position_embeddings=learned'
# {family: (golden run, what differs)}; a change that depends on the number of steps names a step.
FAMILIES = {
  'mlm_nsp': ('nsp', MLM),
  'spans': ('spans and their boundaries, growing', SPANS),
  'languages': ('two languages, full, packed, whole words from step 5', MLM),
  'lexicon': ('nsp', LEXICON),
  'blocks': ('nsp', f'{BLOCKS} {MLM}'),
  'electra': ('electra', ''),
  'albert': ('an albert, bfloat16', ''),
  'modern': ('a modern one', ''),
  'causal': ('causal, two languages', 'model.embedding_norm=false model.type_vocab_size=0'),
  'memory': ('causal, a memory', ''),
  'diffusion': ('causal, then diffusion', ''),
  'teacher': ('from a teacher', 'model.num_hidden_layers=1'),
  'denoising': ('denoising', BART),
  'translation': ('translation', BART),
  'pairs': ('labels of pairs', ''),
  'examples': ('labels of pairs', f'data.train=texts/pairs.tsv {PAIRS}'),
  'labels': ('several labels, unrolled', ''),
  'number': ('a number', ''),
  'tags': ('tags', ''),
  'answers': ('answers', ''),
  'choices': ('choices', ''),
  'vectors': ('vectors, two widths, in chunks', ''),
  'coreference': ('coreference', ''),
}
OTHERS = {'memory', 'teacher', 'diffusion', 'coreference'}  # which have no folder that others read
# What makes the folders that a run reads: a teacher, a prepared corpus.
PREPARE = 'prepare', '--input', 'texts/corpus.txt', '--vocab', 'texts', '--processes', '1', '--out'
convert = lambda folder, to='hf:OUT': ('convert', '--from', folder, '--to', to)


class Subject(NamedTuple):
  """A folder that gets faults. reads: {name: the command that reads it}. only: a pattern of the
  files that get one. copies: further folders that its programs write into."""

  folder: str
  reads: dict[str, tuple]
  only: str = ''
  copies: tuple[str, ...] = ()


def train_command(family, workdir, **changes):
  """The command line that trains a family; a path of its data is relative to its folder."""
  run, more = FAMILIES[family]
  spec, fields = (golden.RUNS | recorder.MORE_RUNS)[run]
  common = {k: x for k, x in golden.COMMON.items() if k != 'checkpoint.best_metric'}
  fields = common | (golden.PRETRAIN if 'pretrain' in spec else golden.FINETUNE) | fields
  fields |= OFTEN | golden.settings(more)
  if 'data' in fields:
    data = fields.pop('data')
    fields = {'data.train': data, 'data.eval': data} | fields
  fields |= {'tokenizer.path': '{texts}/vocab.txt'} | changes
  named = (f'--config.{k}={x}'.format(texts='texts', teacher='T') for k, x in fields.items())
  file, _, arguments = spec.partition(':')
  return 'train', f'--config={ROOT / "configs" / file}:{arguments}', '--workdir', workdir, *named


def tolerance(family):
  """How far, relatively, the metrics of a family may be apart on other devices."""
  return 2e-2 if 'bfloat16' in FAMILIES[family][0] else 1e-5


def before(family):
  """The commands that make what the runs of a family read."""
  made = {'blocks': (*PREPARE, 'D'), 'teacher': train_command('mlm_nsp', 'T')}
  return [made[family]] if family in made else []


def tools(family):
  """{name: command} of the tools that write the folder OUT."""
  out = {'evaluate': ('evaluate', '--workdir', 'W', '--out', 'OUT')}
  out |= {} if family in OTHERS else {'convert': convert('W')}
  out |= {'prepare': (*PREPARE, 'OUT')} if family in ('mlm_nsp', 'blocks') else {}
  return {k: x for k, x in out.items() if k != 'evaluate' or family in ('tags', 'answers')}


def after(family):
  """The commands that make the other folders of a family, once W has been trained."""
  out = [] if family in OTHERS else [convert('W', 'hf:H')]
  if family == 'mlm_nsp':
    _, spec, _, _, *fields = train_command(family, '', steps=4)
    out.append(('sweep', spec, '--workdir', 'G', '--seeds', '2', *fields))
  return out


def subjects(family):
  """{name: Subject} of all that can be damaged. S is a run that was stopped."""
  predict = lambda model, *more: ('predict', '--model', model, '--input', 'texts/lines.txt', *more)
  train, evaluate = train_command(family, 'S'), ('evaluate', '--workdir', 'S')
  of_run = {'train': train, 'evaluate': evaluate, 'predict': predict('S')}
  if 'best_metric' in FAMILIES[family][1]:
    of_run['evaluate best'] = *evaluate, '--checkpoint', 'best'
  if family not in OTHERS:
    of_run['convert'] = convert('S')
  out = {'workdir': Subject('S', of_run)}
  data = '|'.join(re.findall(r'texts/([\w.]+)', ' '.join(train)))
  out['data'] = Subject('texts', {'train': train}, f'^({data})$', copies=('S',))
  if family not in OTHERS:
    begin = train_command(family, 'F', **{'init_from': 'H', 'tokenizer.path': ''})
    of_released = {'train': begin, 'predict': predict('H'), 'convert': convert('H')}
    out['released folder'] = Subject('H', of_released)
  of_data = {'train': train, 'evaluate': evaluate}
  for folder, name in (('D', 'blocks'), ('T', 'teacher')):
    if name == family:
      out[f'folder of {name}'] = Subject(folder, of_data, copies=('S',))
  if family == 'mlm_nsp':
    sweep = *after(family)[-1], '--dry-run'
    files = r'(^|/)(config|summary|sweep|run|metrics|r?[^/]*)\.jsonl?$'
    reads = {'report': ('report', 'G', '--out', 'OUT'), 'sweep': sweep}
    out['sweep'] = Subject('G', reads, only=f'^(?!.*checkpoints/).*{files}')
  return out
